"""Users' Python environments in confined processes."""
