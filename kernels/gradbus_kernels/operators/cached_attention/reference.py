"""Layout and settings of `cached_attention` and `rotate_and_cache`, and both in plain torch, by their definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.decoder_layer.head_norm import HeadNorms


class LayerCache(NamedTuple):
    """Keys and values of a layer for a fixed number of rows, each with room for `capacity` positions."""

    keys: Tensor
    """`[rows, K, capacity, D]`"""
    values: Tensor
    """`[rows, K, capacity, D]`"""


class Places(NamedTuple):
    """Where a batch of R times C tokens lies in a cache: the C of a batch row are consecutive positions of a cache row."""

    starts: Tensor
    """Position of each first token, int64 `[R]`."""
    rows: Tensor
    """Row of the cache, int64 `[R]`; one may occur several times, with different positions."""

    def positions(self, count: int) -> Tensor:
        """Positions of C = `count` tokens a batch row, int64 `[R, C]`."""
        return self.starts[:, None] + torch.arange(count, device=self.starts.device)


@dataclass(frozen=True, slots=True)
class CachedRule:
    """What scores are made of: scale · q · k, softcap · tanh(score / softcap) in its place, and the newest `window` keys alone."""

    scale: float
    window: int | None = None
    softcap: float | None = None


def cached_attention_reference(queries: Tensor, cache: LayerCache, places: Places, rule: CachedRule, sinks: Tensor | None = None) -> Tensor:
    """See `cached_attention`. Needs memory for `[R, H, C, capacity]`."""
    (_, count, heads, _), (_, key_heads, capacity, _) = queries.shape, cache.keys.shape
    positions = places.positions(count)
    back = positions[:, :, None] - torch.arange(capacity, device=queries.device)
    seen = (back >= 0) & (back < (rule.window or capacity + 1))
    known = (back[:, -1] >= 0)[:, None, :, None]  # nobody says what lies behind the newest key
    keys, values = (part[places.rows].masked_fill(~known, 0.0).repeat_interleave(heads // key_heads, dim=1) for part in cache)
    scores = torch.einsum("rchd,rhld->rhcl", queries, keys) * rule.scale
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype)[:, None, None].expand(len(scores), -1, count, 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., :capacity]
    return torch.einsum("rhcl,rhld->rchd", weights, values)


def rotate_and_cache_reference(qkv: Tensor, turns: Tensor, cache: LayerCache, places: Places, norms: HeadNorms | None = None) -> Tensor:
    """See `rotate_and_cache`."""
    key_heads, size = cache.keys.shape[1], cache.keys.shape[3]
    heads = qkv.view(*qkv.shape[:2], -1, size)
    queries, keys, values = torch.split(heads, [heads.shape[2] - 2 * key_heads, key_heads, key_heads], dim=2)
    if norms is not None:
        queries, keys = (_normed(part, weight, norms) for part, weight in zip((queries, keys), norms[:2], strict=True))
    positions = places.positions(qkv.shape[1])
    queries, keys = (_turned(part, table[positions][:, :, None]) for part, table in zip((queries, keys), turns, strict=True))
    for into, new in zip(cache, (keys, values), strict=True):
        into[places.rows[:, None], :, positions] = new
    return queries


def copy_rows_reference(into: Tensor, rows: Tensor, source: Tensor, source_rows: Tensor, length: int) -> None:
    """See `copy_rows`. Waits for the device."""
    for to, origin in zip(rows.tolist(), source_rows.tolist(), strict=True):
        into[:, to, :, :length] = source[:, origin, :, :length]


def _normed(heads: Tensor, weight: Tensor, norms: HeadNorms) -> Tensor:
    wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
    unit = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norms.eps)
    if norms.kind == "llama":
        return unit.to(heads.dtype) * weight
    return (unit * (weight.to(wide.dtype) + (norms.kind == "offset"))).to(heads.dtype)


def _turned(heads: Tensor, turn: Tensor) -> Tensor:
    """Neighbouring elements, as complex numbers, times those of `turn`."""
    wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
    real, imaginary, cos, sin = wide[..., ::2], wide[..., 1::2], turn[..., ::2], turn[..., 1::2]
    return torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1).flatten(-2).to(heads.dtype)
