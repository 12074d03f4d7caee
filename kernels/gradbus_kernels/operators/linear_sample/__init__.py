"""Sampling fused with the LM head, for small batches."""
