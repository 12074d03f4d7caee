"""The trainer: trains a run from its experience log, step by step."""
