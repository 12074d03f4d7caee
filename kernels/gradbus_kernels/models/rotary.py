"""Frequencies of rotary position embedding (Su et al. 2021) and of its variants for longer contexts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradbus.formats.model_config import ModelConfig
from gradbus.formats.rope_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians by which a position rotates each pair, float32 `[head_dim / 2]`, on the CPU; 0 for pairs that are not rotated."""
    turned = rope.turned(head_dim)
    frequencies = torch.zeros(head_dim // 2, dtype=torch.float32, device="cpu")
    frequencies[: (turned + 1) // 2] = _of_pairs(rope, turned)
    return frequencies


def pair_order(rope: RopeConfig, head_dim: int, neighbours: bool) -> list[int]:
    """The elements of a head, ordered so that i and i + head_dim / 2 are a pair.

    Of the elements that are turned, a pair is i and i + half of them, or two neighbours; the rest follows in its own order.
    """
    turned = rope.turned(head_dim)
    first, second = (range(0, turned, 2), range(1, turned, 2)) if neighbours else (range(turned // 2), range(turned // 2, turned))
    middle = (turned + head_dim) // 2
    return [*first, *range(turned, middle), *second, *range(middle, head_dim)]


def _of_pairs(rope: RopeConfig, turned: int) -> Tensor:
    exponents = torch.arange(0, turned, 2, dtype=torch.float32, device="cpu") / turned
    if rope.kind == "longrope":
        return 1.0 / (torch.tensor(rope.factors, dtype=torch.float32, device="cpu") * rope.theta**exponents)
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return frequencies / rope.scaling["factor"]
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    if rope.kind == "yarn":
        return _yarn(frequencies, rope)
    return frequencies


def attention_factor(rope: RopeConfig) -> float:
    """The factor of cosines and sines: 1 except for longrope and for YaRN (Peng et al. 2023, equation 22)."""
    given = rope.scaling.get("attention_factor")
    if rope.kind not in {"yarn", "longrope"}:
        return 1.0
    if given is not None:
        return given
    mscale, all_dim = rope.scaling.get("mscale"), rope.scaling.get("mscale_all_dim")
    factor = rope.scaling["factor"]
    return _temperature(factor, mscale) / _temperature(factor, all_dim) if mscale and all_dim else _temperature(factor, 1.0)


def pair_factors(rope: RopeConfig, head_dim: int) -> float | Tensor:
    """What multiplies cosines and sines: `attention_factor`, or by pair, float32 `[head_dim / 2]`, 1 for pairs that are not rotated."""
    factor, turned = attention_factor(rope), rope.turned(head_dim)
    if factor == 1.0 or turned == head_dim:
        return factor
    factors = torch.ones(head_dim // 2, dtype=torch.float32, device="cpu")
    factors[: turned // 2] = factor
    return factors


def rotation_table(rope: RopeConfig | None, head_dim: int, length: int) -> Tensor:
    """Complex numbers that rotate the pairs of positions 0..length-1, of modulus 1 or `attention_factor`; real parts at even columns.

    Float32 `[length, head_dim]`, on the CPU; a position's bits do not depend on `length`. Ones without a rotary embedding.
    """
    if rope is None:
        return torch.tensor([1.0, 0.0], device="cpu").repeat(length, head_dim // 2)
    angles = torch.arange(length, dtype=torch.float32, device="cpu")[:, None] * inverse_frequencies(rope, head_dim)
    factors = pair_factors(rope, head_dim)
    return torch.stack((angles.cos() * factors, angles.sin() * factors), -1).flatten(1)


def query_scales(rope: RopeConfig, positions: Tensor) -> Tensor:
    """What multiplies the queries at `positions`, float32 of any shape, if `query_beta` is not 0."""
    return 1.0 + rope.query_beta * torch.log(1.0 + torch.floor(positions / rope.scaling["original_max_position_embeddings"]))


def rotation_tables(rope: RopeConfig | None, head_dim: int, length: int) -> Tensor:
    """`rotation_table` for queries, which may grow with their positions, and for keys: `[2, length, head_dim]`."""
    table = rotation_table(rope, head_dim, length)
    if rope is None or not rope.query_beta:
        return torch.stack((table, table))
    scales = query_scales(rope, torch.arange(length, dtype=torch.float32, device="cpu"))
    return torch.stack((table * scales[:, None], table))


def rotation_rows(rope: RopeConfig | None, config: ModelConfig, length: int) -> Tensor:
    """The tables for all heads of queries and keys side by side, `[length, (heads + kv_heads) * head_dim]`."""
    queries, keys = rotation_tables(rope, config.head_dim, length)
    return torch.cat((queries.repeat(1, config.heads), keys.repeat(1, config.kv_heads)), dim=1)


def _temperature(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1: stretches wavelengths beyond the old context by `factor`, keeps short ones, and interpolates between."""
    scaling = rope.scaling
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    ramp = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - ramp) * frequencies / scaling["factor"] + ramp * frequencies


def _yarn(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Peng et al. 2023: keeps pairs that rotate more than `beta_fast` times in the old context, stretches those below `beta_slow`."""
    pairs, scaling = len(frequencies), rope.scaling

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(scaling["original_max_position_embeddings"] / (times * 2 * math.pi)) / math.log(rope.theta)

    low, high = pair_that_turns(scaling.get("beta_fast") or 32.0), pair_that_turns(scaling.get("beta_slow") or 1.0)
    if scaling.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    width = high - low or 0.001  # both ends may be the same pair
    ramp = ((torch.arange(pairs, dtype=torch.float32, device="cpu") - low) / width).clamp(0.0, 1.0)
    return ramp * frequencies / scaling["factor"] + (1 - ramp) * frequencies
