"""Tasks of the worker: prompts in, groups out."""
