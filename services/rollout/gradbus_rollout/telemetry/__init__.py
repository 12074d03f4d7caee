"""Metrics and traces of generation."""
