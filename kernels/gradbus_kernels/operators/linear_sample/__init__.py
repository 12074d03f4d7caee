"""Sampling fused with the LM head, for small batches.

`api`: the function and its reference. `cpu`, `triton`: the product, then the draw of `operators.sample`.
"""
