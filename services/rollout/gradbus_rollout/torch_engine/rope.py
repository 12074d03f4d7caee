"""Rotary position embedding (Su et al. 2021) on interleaved pairs (the weights are laid out for it)."""

from __future__ import annotations

import torch
from torch import Tensor

from gradbus_kernels.model_shape import ModelShape
from gradbus_kernels.rotary import attention_factor, inverse_frequencies


def rope_table(shape: ModelShape, length: int) -> Tensor:
    """Complex numbers that turn the queries and keys of positions 0..length-1, of length 1 but for YaRN.

    Float32 `[length, (heads + kv_heads) * head_dim]`, real parts at even places: whole rows multiply several times faster
    on a CPU than head by head.
    """
    angles = torch.arange(length, dtype=torch.float32)[:, None] * inverse_frequencies(shape.rope, shape.head_dim)
    pairs = torch.stack((angles.cos(), angles.sin()), -1) * attention_factor(shape.rope)
    return pairs.flatten(1).repeat(1, shape.heads + shape.kv_heads)
