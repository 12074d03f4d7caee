"""Attention and packing for responses that share a prompt."""
