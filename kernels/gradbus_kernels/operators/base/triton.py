"""Functions of Triton kernels that have no instruction of their own on every GPU."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(x) -> tl.tensor:
    """tanh of float32; a series keeps small values exact."""
    size, square = tl.abs(x), x * x
    fall = tl.exp2(size * -2.8853900817779268)
    far = tl.where(x < 0, fall - 1.0, 1.0 - fall) / (1.0 + fall)
    near = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0)))))
    return tl.where(size < 0.25, near, far)
