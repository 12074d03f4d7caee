"""Torch operators that the services share, one operator a file."""
