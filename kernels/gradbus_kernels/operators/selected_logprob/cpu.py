"""`selected_logprob` on a CPU, tile by tile, in buffers that stay in the L2 cache.

torch's softmax runs at a quarter of the speed of its vectorised `exp`. Here each step over a tile is one vectorised operation
into an existing buffer. The number of rows in a tile depends on V alone, and no operation here mixes rows, so a row's bits do not
depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import ROWS_TILE as _TILE
from gradbus_kernels.operators.base.block_sizes import slices
from gradbus_kernels.operators.selected_logprob.rows import RowGradients, RowInputs, RowStatistics

_ALONE: Final = 1 << 15
"""Rows at least this long are tiles by themselves: torch splits the sum of a single long row among threads, but not that of several."""
_LEAST, _MOST = 1e-20, 1e30
"""A sum of exponentials in this range needs no shift by the row's maximum: exponentials that underflow lie below the sum's last bit."""


def forward_cpu(inputs: RowInputs, entropy: bool) -> RowStatistics:
    """See `selected_logprob`."""
    entropies = _column(inputs) if entropy else None
    kl, other_logprobs = (None if inputs.other_logits is None else _column(inputs) for _ in range(2))
    other_normaliser = None if inputs.other_logits is None else _column(inputs, 2)
    normaliser = _column(inputs, 2)
    found = RowStatistics(_column(inputs), entropies, kl, other_logprobs, normaliser, other_normaliser)
    tiles = _Tiles(inputs)
    for rows in tiles.slices():
        if tiles.ignored(rows):
            continue
        if entropies is None and kl is None:
            _logprobs_alone(tiles, rows, found)
        else:
            _everything(tiles, rows, found)
    if inputs.valid is not None:
        for column in found[:4]:
            if column is not None:
                column.masked_fill_(~inputs.valid, 0.0)
    return found


def backward_cpu(inputs: RowInputs, found: RowStatistics, wanted: RowGradients) -> Tensor:
    """The gradient in `logits`. With p the softmax at temperature T, for token i of a row whose selected token is t:

    T dL/dz_i = g [i = t] - p_i (g + g_H (log p_i + H) - g_KL (log p_i - log q_i - KL)).
    """
    tiles = _Tiles(inputs)
    gradient = torch.empty_like(inputs.logits)
    for rows in tiles.slices():
        if tiles.ignored(rows):
            gradient[rows] = 0
            continue
        own = gradient[rows] if gradient.dtype == inputs.accumulator else tiles.buffer(2, rows)
        at_token = tiles.pull(wanted.logprobs, rows)
        if wanted.entropy is None and wanted.kl is None:
            shift, rest = found.normaliser[rows, :, None].unbind(1)
            torch.sub(tiles.scaled(inputs.logits, rows, 0), shift, out=own).exp_().mul_(-at_token * torch.exp(-rest))
        else:
            _all_pulls(tiles, rows, found, wanted, own)
        own.scatter_add_(1, inputs.ids[rows, None], at_token)
        if inputs.valid is not None:
            own.masked_fill_(~inputs.valid[rows, None], 0.0)
        if own.dtype != gradient.dtype:
            gradient[rows] = own
    return gradient


class _Tiles:
    """The rows in tiles, and three buffers of a tile's size."""

    def __init__(self, inputs: RowInputs) -> None:
        self.inputs = inputs
        rows, vocabulary = inputs.logits.shape
        self._height = 1 if vocabulary >= _ALONE else max(1, min(rows, _TILE // vocabulary))
        self._buffers: dict[int, Tensor] = {}

    def slices(self) -> Iterator[slice]:
        return slices(len(self.inputs.logits), self._height)

    def ignored(self, rows: slice) -> bool:
        """Whether no row of the slice counts."""
        return self.inputs.valid is not None and not bool(self.inputs.valid[rows].any())

    def buffer(self, number: int, rows: slice) -> Tensor:
        if number not in self._buffers:
            self._buffers[number] = torch.empty(self._height, self.inputs.logits.shape[1], dtype=self.inputs.accumulator)
        return self._buffers[number][: rows.stop - rows.start]

    def scaled(self, logits: Tensor, rows: slice, number: int) -> Tensor:
        """logits / temperature: a view of `logits` where no operation is needed, else a buffer."""
        if logits.dtype != self.inputs.accumulator:
            tile = self.buffer(number, rows).copy_(logits[rows])
            return tile if self.inputs.temperature == 1.0 else tile.div_(self.inputs.temperature)
        if self.inputs.temperature == 1.0:
            return logits[rows]
        return torch.div(logits[rows], self.inputs.temperature, out=self.buffer(number, rows))

    def pull(self, wanted: Tensor | None, rows: slice) -> Tensor:
        """A column of upstream gradients, divided by the temperature; zeros for None."""
        if wanted is None:
            return torch.zeros(rows.stop - rows.start, 1, dtype=self.inputs.accumulator)
        return wanted[rows, None] / self.inputs.temperature


def _column(inputs: RowInputs, *width: int) -> Tensor:
    return torch.empty(len(inputs.logits), *width, dtype=inputs.accumulator)


def _in_two(normaliser: Tensor, inputs: RowInputs) -> Tensor:
    """Float64 numbers as sums of two numbers in the accumulator's dtype, `[n, 2]`."""
    most = normaliser.to(inputs.accumulator)
    return torch.stack((most, (normaliser - most.double()).to(inputs.accumulator)), dim=1)


def _at(tile: Tensor, tiles: _Tiles, rows: slice) -> Tensor:
    return tile.gather(1, tiles.inputs.ids[rows, None]).squeeze(1).double()


def _logprobs_alone(tiles: _Tiles, rows: slice, found: RowStatistics) -> None:
    scaled = tiles.scaled(tiles.inputs.logits, rows, 0)
    weights = torch.exp(scaled, out=tiles.buffer(1, rows))
    total = weights.sum(1)
    far = ~((total > _LEAST) & (total < _MOST))
    shift = torch.zeros_like(total)
    if bool(far.any()):
        shift = torch.where(far, scaled.amax(1), 0.0)
        total = torch.sub(scaled, shift.unsqueeze(1), out=weights).exp_().sum(1)
    normaliser = shift.double() + total.double().log()
    found.normaliser[rows] = _in_two(normaliser, tiles.inputs)
    found.logprobs[rows] = _at(scaled, tiles, rows) - normaliser


def _everything(tiles: _Tiles, rows: slice, found: RowStatistics) -> None:
    inputs = tiles.inputs
    if inputs.other_logits is not None and found.other_logprobs is not None and found.other_normaliser is not None:
        other, other_peak, other_total = _shifted(tiles, inputs.other_logits, rows, 2)
        found.other_logprobs[rows] = _at(other, tiles, rows) - other_total.log()
        found.other_normaliser[rows] = _in_two(other_peak + other_total.log(), inputs)
    shifted, peak, total = _shifted(tiles, inputs.logits, rows, 0)
    found.logprobs[rows] = _at(shifted, tiles, rows) - total.log()
    found.normaliser[rows] = _in_two(peak + total.log(), inputs)
    weights = tiles.buffer(1, rows)
    if found.kl is not None:
        apart = torch.sub(shifted, other, out=other)
        found.kl[rows] = _weighted_sum(apart, weights) / total - total.log() + other_total.log()
    if found.entropy is not None:
        found.entropy[rows] = total.log() - _weighted_sum(shifted, weights) / total


def _shifted(tiles: _Tiles, logits: Tensor, rows: slice, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits minus their row's maximum, in that buffer; the maximum; the sum of the exponentials, which are in buffer 1."""
    scaled = tiles.scaled(logits, rows, number)
    peak = scaled.amax(1)
    shifted = torch.sub(scaled, peak.unsqueeze(1), out=tiles.buffer(number, rows))
    total = torch.exp(shifted, out=tiles.buffer(1, rows)).sum(1)
    return shifted, peak.double(), total.double()


def _weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of each row; overwrites `values`. A value of weight 0 adds 0, even if it is infinite."""
    total = values.mul_(weights).sum(1)
    if bool(total.isnan().any()):
        total = values.masked_fill_(weights == 0, 0.0).sum(1)
    return total.double()


def _all_pulls(tiles: _Tiles, rows: slice, found: RowStatistics, wanted: RowGradients, own: Tensor) -> None:
    """The gradient without the term of the selected token. A token of probability 0 gets 0, even if its logit is infinite."""
    inputs = tiles.inputs
    shift, rest = found.normaliser[rows, :, None].unbind(1)
    shifted = torch.sub(tiles.scaled(inputs.logits, rows, 0), shift, out=tiles.buffer(0, rows))
    weights = torch.exp(shifted, out=tiles.buffer(1, rows))  # p is this by factor
    factor = torch.exp(-rest)
    constant, bracket = -tiles.pull(wanted.logprobs, rows), shifted
    if wanted.kl is not None and inputs.other_logits is not None and found.other_normaliser is not None and found.kl is not None:
        other_shift, other_rest = found.other_normaliser[rows, :, None].unbind(1)
        other = torch.sub(tiles.scaled(inputs.other_logits, rows, 2), other_shift, out=tiles.buffer(2, rows))
        mean = found.kl[rows, None] + (rest - other_rest)
        bracket = torch.sub(shifted, other, out=other).sub_(mean).mul_(tiles.pull(wanted.kl, rows) * factor)
    if wanted.entropy is not None and found.entropy is not None:
        pull = tiles.pull(wanted.entropy, rows)
        constant -= pull * (found.entropy[rows, None] - rest)
        pull = pull * factor
        bracket = shifted.mul_(-pull) if bracket is shifted else bracket.sub_(shifted.mul_(pull))
    total = torch.mul(bracket.add_(constant * factor), weights, out=own).sum(1)
    if bool(total.isnan().any()):
        total = own.masked_fill_(weights == 0, 0.0).sum(1)
    if wanted.kl is not None:
        # A row's gradient sums to 0. This removes the rounding error of the mean, which is large where the two models differ much.
        own.addcmul_(weights, factor * (-tiles.pull(wanted.logprobs, rows) - total[:, None]))
