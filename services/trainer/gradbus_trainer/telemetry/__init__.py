"""Metrics and traces of training steps."""
