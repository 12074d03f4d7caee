"""Rotary position embedding (Su et al. 2021) on interleaved pairs (the weights are laid out for it)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradbus_rollout.torch_engine.shape import ModelShape, RopeShape


def rope_table(shape: ModelShape, length: int) -> Tensor:
    """Unit complex numbers that turn the queries and keys of positions 0..length-1.

    Float32 `[length, (heads + kv_heads) * head_dim]`, real parts at even places: whole rows multiply several times faster
    on a CPU than head by head.
    """
    angles = torch.arange(length, dtype=torch.float32)[:, None] * _inverse_frequencies(shape)
    return torch.stack((angles.cos(), angles.sin()), -1).flatten(1).repeat(1, shape.heads + shape.kv_heads)


def _inverse_frequencies(shape: ModelShape) -> Tensor:
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequencies = 1.0 / shape.rope.theta**exponents
    if shape.rope.kind == "linear":
        return frequencies / shape.rope.scaling["factor"]
    if shape.rope.kind == "llama3":
        return _llama3(frequencies, shape.rope, shape.context_length)
    return frequencies


def _llama3(frequencies: Tensor, rope: RopeShape, context_length: int) -> Tensor:
    """Llama 3.1: wavelengths beyond the old context are stretched by `factor`, short ones kept, a ramp between."""
    scaling = rope.scaling
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling.get("original_max_position_embeddings", context_length) * frequencies / (2 * math.pi)
    ramp = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - ramp) * frequencies / scaling["factor"] + ramp * frequencies
