"""Submissions: checks the spec of a run, and stores the model and data that it names."""
