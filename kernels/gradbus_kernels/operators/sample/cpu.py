"""`sample` on a CPU: tiles of rows stay in the L2 cache, and a small support is found without sorting the vocabulary.

A row with a cut-off is read once for its normaliser and for the maxima of blocks of 64 logits; only blocks whose maximum is high
enough can hold tokens of the support. The algorithm for a row depends on V and its own parameters alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import ROWS_TILE as _TILE
from gradbus_kernels.operators.base.block_sizes import slices
from gradbus_kernels.operators.sample.reference import Columns, Sampled, draw_rows

_SHORT: Final = 1 << 12
"""Rows up to this length are sorted as a whole, many at a time, which is faster than the search below."""
_BLOCK: Final = 64
_BUCKETS: Final = 16
"""Buckets for each unit of log-probability."""
_DEPTHS: Final = (8.0, math.inf)
"""Distances below the largest logit within which the search for the tokens of top-p runs, in turn."""


def draw_cpu(logits: Tensor, uniforms: Tensor, rows: Columns) -> Sampled:
    """See `draw_rows`."""
    height = max(1, _TILE // logits.shape[1])
    if len(logits) <= height:
        return _draw_tile(logits, uniforms, rows)
    return _joined([_draw_tile(logits[tile], uniforms[tile], rows.rows(tile)) for tile in slices(len(logits), height)])


def _draw_tile(logits: Tensor, uniforms: Tensor, rows: Columns) -> Sampled:
    if rows.cut is None or logits.shape[1] <= _SHORT:
        return draw_rows(logits, uniforms, rows)
    drawn = []
    for number, cut in enumerate(rows.cut.flatten().tolist()):
        row = slice(number, number + 1)
        drawn.append((_draw_cut if cut else draw_rows)(logits[row], uniforms[row], rows.rows(row)))
    return _joined(drawn)


def _joined(parts: list[Sampled]) -> Sampled:
    return Sampled(*(torch.cat(part) for part in zip(*parts, strict=True)))


class _Tokens(NamedTuple):
    """Some tokens of a row, in the order of their ids."""

    ids: Tensor
    logprobs: Tensor
    """float64."""

    def at_least(self, logprob: float | Tensor) -> _Tokens:
        kept = self.logprobs >= logprob
        return _Tokens(self.ids[kept], self.logprobs[kept])


def _draw_cut(logits: Tensor, uniforms: Tensor, row: Columns) -> Sampled:
    """One row `[1, V]`, whose support is found without a sort of the vocabulary."""
    scaled = torch.full((-(-logits.shape[1] // _BLOCK), _BLOCK), -math.inf)
    scaled.view(-1)[: logits.shape[1]] = logits[0]
    scaled.div_(row.temperature)
    peaks = scaled.amax(1)
    normaliser = peaks.max().double() + torch.exp(scaled.view(-1) - peaks.max()).sum().double().log()
    if not math.isfinite(normaliser):
        unknown = torch.full(uniforms.shape, math.nan)
        return Sampled(torch.zeros(uniforms.shape, dtype=torch.int64), unknown, unknown)
    support = _support(scaled, peaks, normaliser, row, logits.shape[1])
    cumulative = support.logprobs.exp().cumsum(0)
    indices = torch.searchsorted(cumulative, uniforms * cumulative[-1], right=True)
    if row.greedy is not None and bool(row.greedy):
        indices = torch.searchsorted(support.ids, logits.argmax()).expand_as(indices)
    chosen = support.logprobs[indices]
    return Sampled(support.ids[indices], chosen.float(), (chosen - cumulative[-1].log()).clamp_(max=0.0).float())


def _support(scaled: Tensor, peaks: Tensor, normaliser: Tensor, row: Columns, vocabulary: int) -> _Tokens:
    top_k = 0 if row.top_k is None or row.top_k >= vocabulary else int(row.top_k)
    top_p = 1.0 if row.top_p is None else float(row.top_p)
    min_p = 0.0 if row.min_p is None else float(row.min_p)
    likely = float(peaks.max() - normaliser) + math.log(min_p) if min_p else -math.inf
    for floor in _floors(peaks, top_k, top_p, min_p):
        found = _tokens(scaled, peaks, floor, normaliser)
        least = _least(found.logprobs, top_k, top_p)
        if least is not None:
            return found.at_least(max(least, likely))
    return found.at_least(likely)


def _floors(peaks: Tensor, top_k: int, top_p: float, min_p: float) -> Iterator[float]:
    """Lower bounds of the support's logits to try in turn: later ones are lower, in case the first was too high."""
    if top_k > 0:  # if k blocks reach it, k tokens do
        yield float(peaks.topk(top_k).values[-1]) if top_k <= len(peaks) else -math.inf
    elif top_p < 1.0:
        yield from (float(peaks.max()) - depth for depth in _DEPTHS)
    else:  # slightly lower than the bound, which is applied later
        yield float(peaks.max()) + math.log(min_p) - 1e-3 if min_p else -math.inf


def _tokens(scaled: Tensor, peaks: Tensor, floor: float, normaliser: Tensor) -> _Tokens:
    blocks = (peaks >= floor).nonzero()
    ids = (blocks * _BLOCK + torch.arange(_BLOCK)).flatten()
    values = scaled[blocks.flatten()].flatten()
    inside = (values >= floor) & (values > -math.inf)
    return _Tokens(ids[inside], values[inside].double() - normaliser)


def _least(logprobs: Tensor, top_k: int, top_p: float) -> float | None:
    """The lowest log-probability that top-k and top-p keep; None if more tokens are needed to find it."""
    if top_p == 1.0 and (top_k == 0 or top_k >= len(logprobs)):
        return -math.inf
    share = 1.0
    if top_k > 0:
        logprobs = logprobs[logprobs >= logprobs.topk(min(top_k, len(logprobs))).values[-1]]
        share = float(logprobs.exp().sum())
    return float(logprobs.min()) if top_p == 1.0 else _reaching(logprobs, top_p * share)


def _reaching(logprobs: Tensor, mass: float) -> float | None:
    """The log-probability down to which the tokens' probabilities sum to `mass`; None if their sum is less."""
    before = 0.0
    if len(logprobs) > _SHORT:  # sort no more than one bucket
        buckets = ((logprobs.max() - logprobs) * _BUCKETS).clamp_(max=1e4).long()
        masses = torch.bincount(buckets, logprobs.exp()).cumsum(0)
        reached = int(torch.searchsorted(masses, mass))
        if reached == len(masses):
            return None
        before = float(masses[reached - 1]) if reached else 0.0
        logprobs = logprobs[buckets == reached]
    falling = logprobs.sort(descending=True).values
    index = int(torch.searchsorted(falling.exp().cumsum(0), mass - before))
    if index == len(falling):
        return float(falling[-1]) if before else None
    return float(falling[index])
