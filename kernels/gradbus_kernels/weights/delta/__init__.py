"""Deltas between two versions of the weights, bit for bit."""
