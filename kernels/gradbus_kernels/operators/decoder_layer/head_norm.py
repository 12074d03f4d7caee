"""RMSNorm of each head of queries and keys, and the rotary embedding after it, as one operation (Qwen3)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_dtype, check_floats, require
from gradbus_kernels.operators.base.dispatch import choose
from gradbus_kernels.operators.decoder_layer.norm import rms_norm
from gradbus_kernels.operators.decoder_layer.rotary import Rotation, Turned, check_rotary, rotary


class HeadNorms(NamedTuple):
    """RMSNorm of each head of queries and keys before they are rotated."""

    query: Tensor
    """Weight `[D]`."""
    key: Tensor
    """Weight `[D]`."""
    eps: float
    kind: Literal["llama", "float32", "offset"] = "llama"
    """The weight multiplies after the cast from float32; before it; before it, as 1 + weight."""


def normed_rotary(qkv: Tensor, norms: HeadNorms, rotation: Rotation, key_heads: int) -> Turned:
    """`rotary` of float `[N, H + 2K, D]`, after `rms_norm` of each head of queries and keys. Differentiable once, in `qkv` and weights.

    Norms are of the kind `llama`.

    Raises ValueError, which names the argument.
    """
    check_rotary(qkv, rotation, key_heads)
    for name, weight in (("norms.query", norms.query), ("norms.key", norms.key)):
        check_floats(name, weight, (qkv.shape[2],), qkv)
        check_dtype(name, weight, "qkv", qkv)
    require(norms.eps >= 0.0, "norms.eps", f"is {norms.eps}; pass 0 or more")
    require(norms.kind == "llama", "norms.kind", f"is {norms.kind}; pass llama, or norm and rotate one after the other")
    if choose("normed_rotary", qkv, ("reference", "cpu", "triton")) == "triton":
        from gradbus_kernels.operators.decoder_layer.triton import head_norm as on_gpu  # noqa: PLC0415 - needs Triton

        return Turned(*on_gpu.normed_rotary(qkv, (norms.query, norms.key, norms.eps), rotation, key_heads))
    return normed_rotary_reference(qkv, norms, rotation, key_heads)


def normed_rotary_reference(qkv: Tensor, norms: HeadNorms, rotation: Rotation, key_heads: int) -> Turned:
    """The same by its two operations, each of the implementation that is asked for."""
    query, key, value = qkv.split_with_sizes([qkv.shape[1] - 2 * key_heads, key_heads, key_heads], dim=1)
    normed = torch.cat((rms_norm(query, norms.query, norms.eps), rms_norm(key, norms.key, norms.eps), value), dim=1)
    return rotary(normed, rotation, key_heads)
