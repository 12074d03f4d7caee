"""Submission of a run: the spec, and the model and data it names."""
