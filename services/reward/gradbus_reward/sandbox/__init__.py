"""Users' graders in confined processes."""
