"""The reward service: graders in child processes, or a way to the user's own scorer."""
