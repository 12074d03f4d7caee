"""Sampling of tokens from logits, by seed and position alone.

`api`: the functions. `reference`: SamplingParams, results, and the draw in plain torch. `cpu`; `triton` with `triton_kernels`.
"""
