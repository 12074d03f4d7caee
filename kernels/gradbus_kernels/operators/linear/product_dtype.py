"""The dtype in which a device multiplies.

On a CPU without instructions for bfloat16 torch multiplies it by a plain loop, at 1 GFLOP/s a core where float32 has 60.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left · right` of matrices `[..., N, K]` and `[..., K, M]` of one dtype, in `product_dtype`; rounded to theirs."""
    wide = product_dtype(left.dtype, left.device)
    return left @ right if wide == left.dtype else (left.to(wide) @ right.to(wide)).to(left.dtype)


def product_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """In which factors of `dtype` are multiplied: `dtype` itself, or float32 for bfloat16 on a CPU that has no instructions for it.

    A product of the widened factors, rounded once, is as exact as that of the instructions, which add up in float32 too.
    """
    return torch.float32 if dtype == torch.bfloat16 and device.type == "cpu" and not _has_bfloat16() else dtype


@cache
def _has_bfloat16() -> bool:
    """Torch has no public function for this."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
