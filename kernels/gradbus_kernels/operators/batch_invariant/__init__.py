"""Batch-invariant operators: the bits of a row do not depend on the other rows, nor on their number.

One module an operator, with its CPU implementation and its reference: `matmul`, `attention`, `embedding`, `layers` (norm, rotary
embedding, SwiGLU), `logprob`. `triton`: their GPU kernels.
"""
