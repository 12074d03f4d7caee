"""Traces of sampled groups, and the worker's busy time."""
