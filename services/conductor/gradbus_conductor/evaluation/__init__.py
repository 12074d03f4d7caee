"""Evaluation on held-out rows."""
