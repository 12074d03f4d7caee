"""The reward service: scores samples, by graders or by users' services."""
