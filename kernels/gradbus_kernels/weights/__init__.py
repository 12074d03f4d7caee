"""How policy weights travel: digests, deltas, broadcast."""
