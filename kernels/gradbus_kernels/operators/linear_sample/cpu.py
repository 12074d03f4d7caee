"""`linear_sample` on a CPU: without a cut-off, the logits `[B, V]` are never all in memory.

The inverse transform takes two passes. The first goes over the head in tiles and keeps the sum of exponentials of each block of 256
tokens, which decide the block of a row's token. The second computes that block's logits again and finds the token. Cut-offs compare
tokens of the whole vocabulary; with them, all logits of the small batch are computed and `sample` draws from them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.softcap import softcap_in_place
from gradbus_kernels.operators.sample.cpu import draw_cpu
from gradbus_kernels.operators.sample.reference import Columns, Sampled

_TILE: Final = 1 << 13
"""Tokens whose logits exist at one time."""
_BLOCK: Final = 1 << 8


def draw_linear_cpu(hidden: Tensor, weight: Tensor, uniforms: Tensor, rows: Columns, softcap: float | None = None) -> Sampled:
    """`draw_rows` from `hidden @ weight.T`, bounded by the softcap."""
    if rows.cuts:
        return draw_cpu(softcap_in_place(hidden @ weight.T, softcap), uniforms, rows)
    ids, logprobs = _draw(hidden, weight, uniforms, rows, softcap)
    return Sampled(ids, logprobs, logprobs)


class _Blocks(NamedTuple):
    """Each block's maximum and sum of exponentials relative to it, `[B, V / 256]`; each row's likeliest token, `[B]`."""

    peaks: Tensor
    totals: Tensor
    best: Tensor


def _draw(hidden: Tensor, weight: Tensor, uniforms: Tensor, rows: Columns, softcap: float | None) -> tuple[Tensor, Tensor]:
    blocks = _blocks(hidden, weight, rows.temperature, softcap)
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
            part = weight[block * _BLOCK : (block + 1) * _BLOCK]
            logits = _scaled(hidden[row : row + 1], part, _row(rows.temperature, row), softcap)[0]
            inside = (logits - peak[row]).double().exp()
            index = torch.searchsorted(inside.cumsum(0), rest[row, draw], right=True)
            index = torch.minimum(index, inside.nonzero().amax())  # by rounding, none may exceed
            if rows.greedy is not None:
                index = torch.where(rows.greedy[row, 0], blocks.best[row] - block * _BLOCK, index)
            ids[row, draw] = block * _BLOCK + index
            logprobs[row, draw] = logits[index] - normaliser[row, 0]
    return ids, logprobs


def _blocks(hidden: Tensor, weight: Tensor, temperature: float | Tensor, softcap: float | None) -> _Blocks:
    peaks, totals = [], []
    highest, best = (
        hidden.new_full((len(hidden),), -math.inf, dtype=torch.float32),
        torch.zeros(len(hidden), dtype=torch.int64).to(hidden.device),
    )
    for start in range(0, len(weight), _TILE):
        logits = _scaled(hidden, weight[start : start + _TILE], temperature, softcap)
        top, index = logits.max(1)
        best = torch.where(top > highest, start + index, best)
        highest = torch.maximum(highest, top)
        if logits.shape[1] % _BLOCK:
            logits = torch.nn.functional.pad(logits, (0, -logits.shape[1] % _BLOCK), value=-math.inf)
        tile = logits.view(len(hidden), logits.shape[1] // _BLOCK, _BLOCK)
        peak = tile.amax(2, keepdim=True)
        peaks.append(peak.squeeze(2))
        totals.append(tile.sub_(peak).exp_().sum(2))
    return _Blocks(torch.cat(peaks, 1), torch.cat(totals, 1), best)


def _scaled(hidden: Tensor, weight: Tensor, temperature: float | Tensor, softcap: float | None) -> Tensor:
    return softcap_in_place((hidden @ weight.T).float(), softcap).div_(temperature)


def _row(temperature: float | Tensor, row: int) -> float | Tensor:
    return temperature[row] if isinstance(temperature, Tensor) else temperature
