"""How the parts of a grader are graded: in a thread, in confined processes, in sandboxes."""
