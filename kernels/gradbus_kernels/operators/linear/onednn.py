"""Products of float32 matrices on a CPU with AVX-512, by oneDNN.

torch multiplies float32 by MKL, which takes AVX2 on processors that are not Intel's: half the speed of oneDNN's AVX-512. oneDNN prepares
code for each shape at its first use, about 1 ms and half a megabyte.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

import torch
from torch import Tensor

_SHAPES: Final = "96"
"""Shapes whose code is kept, of products of any dtype: about 45 MB. By default 1,024 are, and each new number of rows has its own."""
for _kept_by in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):  # torch's and oneDNN's; read at the first product
    os.environ.setdefault(_kept_by, _SHAPES)


def by_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN multiplies tensors of this kind faster than torch does by itself."""
    return dtype == torch.float32 and device.type == "cpu" and _has_avx512()


def times_transposed(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """`left · rightᵀ + bias` of float32 `[..., K]`, `[M, K]` and `[M]`.

    The rows of `left` are contiguous, or are copied; `right` may be a transposed view.
    """
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(left, right, bias, "none", [], "")
    return out


def is_product_for_onednn(left: Tensor, right: Tensor, least: int) -> bool:
    """Whether the product of `[N, K]` and `[K, M]` should be oneDNN's: at least `least` multiplications, of a kind that it is faster at."""
    return left.shape[0] * right.numel() >= least and by_onednn(left.dtype, left.device)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left · right` of `[N, K]` and `[K, M]`."""
    if left.stride(0) == 1 and left.stride(1) != 1:
        return times_transposed(right.t(), left).t()
    return times_transposed(left, right.t())


@cache
def _has_avx512() -> bool:
    present = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    return present and torch.backends.cpu.get_cpu_capability() == "AVX512"
