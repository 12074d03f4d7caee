"""`sample` fused with the LM head for small batches: the logits `[B, V]` are never whole in memory.

Two passes of the inverse transform. The first goes over the head in tiles and keeps the sum of exponentials of each block of 256
tokens; these tell in which block a row's token lies. The second makes that block's logits again and finds it.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.arguments import check_finite, check_floats, require
from gradbus_kernels.operators.counter import counter_uniform
from gradbus_kernels.operators.dispatch import choose
from gradbus_kernels.operators.sample import by_row, check_draws, sample_reference
from gradbus_kernels.operators.sample_rows import Columns, Sampled, Sampling, columns

_PLAIN: Final = Sampling()
_TILE: Final = 1 << 13
"""Tokens whose logits exist at one time."""
_BLOCK: Final = 1 << 8


def linear_sample(hidden: Tensor, weight: Tensor, seeds: Tensor, positions: Tensor, sampling: Sampling = _PLAIN) -> Sampled:
    """`sample(hidden @ weight.T, ...)` up to rounding, for temperature and greedy.

    `hidden` float `[B, H]`, `weight` `[V, H]` of the same dtype; `seeds`, `positions` and the results as in `sample`. Cut-offs need
    the logits whole: they raise ValueError, as does what `sample` refuses. The matrix product decides whether a row's last bits
    depend on the batch around it.
    """
    check_floats("hidden", hidden, (None, None))
    check_floats("weight", weight, (None, hidden.shape[1]), hidden)
    require(weight.dtype == hidden.dtype, "weight", f"is {weight.dtype}; pass {hidden.dtype}, as hidden")
    require(len(weight) > 0, "weight", "has an empty vocabulary; pass at least one row")
    check_draws(hidden, seeds, positions, sampling)
    for name in ("top_k", "top_p", "min_p"):
        require(getattr(columns(sampling, hidden), name) is None, name, "needs the logits whole; leave it off, or pass them to sample")
    if choose("linear_sample", hidden, ("reference", "cpu")) == "reference":
        drawn = sample_reference(hidden @ weight.T, seeds, positions, sampling)
    else:
        uniforms = counter_uniform(seeds, positions)
        ids, logprobs = (part.reshape(uniforms.shape) for part in _draw(hidden, weight, by_row(uniforms), columns(sampling, hidden)))
        drawn = Sampled(ids, logprobs, logprobs)
    check_finite("hidden", by_row(drawn.logprobs).sum(1))
    return drawn


class _Blocks(NamedTuple):
    """Of each row's blocks `[B, V / 256]`: the maximum, and the sum of exponentials under it. Of each row the likeliest token `[B]`."""

    peaks: Tensor
    totals: Tensor
    best: Tensor


def _draw(hidden: Tensor, weight: Tensor, uniforms: Tensor, rows: Columns) -> tuple[Tensor, Tensor]:
    blocks = _blocks(hidden, weight, rows.temperature)
    peak = blocks.peaks.amax(1, keepdim=True)
    cumulative = (blocks.totals.double() * (blocks.peaks - peak).double().exp()).cumsum(1)
    target = uniforms * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)
    if rows.greedy is not None:
        chosen = torch.where(rows.greedy, (blocks.best // _BLOCK).unsqueeze(1), chosen)
    rest = target - torch.nn.functional.pad(cumulative, (1, 0)).gather(1, chosen)
    ids, logprobs = torch.empty_like(chosen), torch.empty(chosen.shape, device=hidden.device)
    normaliser = peak.double() + cumulative[:, -1:].log()
    for row in range(len(hidden)):
        for draw, block in enumerate(chosen[row].tolist()):
            logits = _scaled(hidden[row : row + 1], weight[block * _BLOCK : (block + 1) * _BLOCK], _row(rows.temperature, row))[0]
            inside = (logits - peak[row]).double().exp()
            place = torch.searchsorted(inside.cumsum(0), rest[row, draw], right=True)
            place = torch.minimum(place, inside.nonzero().amax())  # rounding may leave none that exceeds
            if rows.greedy is not None:
                place = torch.where(rows.greedy[row, 0], blocks.best[row] - block * _BLOCK, place)
            ids[row, draw] = block * _BLOCK + place
            logprobs[row, draw] = logits[place] - normaliser[row, 0]
    return ids, logprobs


def _blocks(hidden: Tensor, weight: Tensor, temperature: float | Tensor) -> _Blocks:
    peaks, totals = [], []
    highest, best = (
        hidden.new_full((len(hidden),), -math.inf, dtype=torch.float32),
        torch.zeros(len(hidden), dtype=torch.int64).to(hidden.device),
    )
    for start in range(0, len(weight), _TILE):
        logits = _scaled(hidden, weight[start : start + _TILE], temperature)
        top, place = logits.max(1)
        best = torch.where(top > highest, start + place, best)
        highest = torch.maximum(highest, top)
        if logits.shape[1] % _BLOCK:
            logits = torch.nn.functional.pad(logits, (0, -logits.shape[1] % _BLOCK), value=-math.inf)
        tile = logits.view(len(hidden), logits.shape[1] // _BLOCK, _BLOCK)
        peak = tile.amax(2, keepdim=True)
        peaks.append(peak.squeeze(2))
        totals.append(tile.sub_(peak).exp_().sum(2))
    return _Blocks(torch.cat(peaks, 1), torch.cat(totals, 1), best)


def _scaled(hidden: Tensor, weight: Tensor, temperature: float | Tensor) -> Tensor:
    return (hidden @ weight.T).float().div_(temperature)


def _row(temperature: float | Tensor, row: int) -> float | Tensor:
    return temperature[row] if isinstance(temperature, Tensor) else temperature
