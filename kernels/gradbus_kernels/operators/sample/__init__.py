"""Sampling of tokens from logits, by seed and position alone."""
