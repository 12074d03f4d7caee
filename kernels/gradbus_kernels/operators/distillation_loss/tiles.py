"""The policy's or a teacher's log-probabilities of the whole vocabulary, a tile of positions at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import slices
from gradbus_kernels.operators.base.softcap import Softcapped, softcap_in_place, softcap_slopes
from gradbus_kernels.operators.linear_logprob.head import add_product, multiply

WORKSPACE: Final = 256 << 20
"""Most bytes of a tile."""


class Tile(NamedTuple):
    """Some of N positions."""

    rows: slice
    logprobs: Tensor
    """`[n, V]`, float32 (float64 for float64); the caller may write into it."""
    level: Tensor
    """`[n, 1]`: what was taken from the softcapped logits by the temperature."""


def logprob_tiles(hidden: Tensor, weight: Tensor, temperature: Softcapped) -> Iterator[Tile]:
    """log softmax(hidden · weightᵀ / temperature) of all positions; `hidden` `[N, H]`, `weight` `[V, H]`, without gradients."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    tokens = max(1, min(len(hidden), WORKSPACE // (len(weight) * dtype.itemsize)))
    for rows in slices(len(hidden), tokens):
        logprobs = hidden.new_empty(rows.stop - rows.start, len(weight), dtype=dtype)
        multiply(hidden[rows], weight.T, logprobs)
        softcap_in_place(logprobs, temperature.softcap)
        logprobs.div_(temperature.value)
        level = logprobs.logsumexp(1, keepdim=True)
        yield Tile(rows, logprobs.sub_(level), level)


@dataclass(frozen=True, slots=True)
class HeadGradients:
    """The gradients of hidden states `[N, H]` and head `[V, H]`, those that are wanted, to which each tile adds its part."""

    inputs: tuple[Tensor, Tensor]
    temperature: Softcapped
    hidden: Tensor | None
    of_weight: Tensor | None
    """In float32 at least: a sum of several products needs it."""

    @classmethod
    def zeros(cls, hidden: Tensor, weight: Tensor, temperature: Softcapped, wanted: tuple[bool, bool]) -> HeadGradients:
        """Before the first tile."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        of_hidden = torch.zeros_like(hidden) if wanted[0] else None
        return cls((hidden, weight), temperature, of_hidden, torch.zeros_like(weight, dtype=wide) if wanted[1] else None)

    @property
    def are_wanted(self) -> bool:
        """Whether there is any."""
        return self.hidden is not None or self.of_weight is not None

    @property
    def weight(self) -> Tensor | None:
        """That of the head, in its dtype."""
        return None if self.of_weight is None else self.of_weight.to(self.inputs[1].dtype)

    def add(self, tile: Tile, slopes: Tensor) -> None:
        """Adds those of a tile. `slopes` `[n, V]` are the derivatives by its bounded logits, temperature included; both are used up."""
        hidden, weight = self.inputs
        if self.temperature.softcap is not None:
            slopes.mul_(softcap_slopes(tile.logprobs.add_(tile.level).mul_(self.temperature.value), self.temperature.softcap))
        narrow = slopes.to(hidden.dtype)
        if self.hidden is not None:
            self.hidden[tile.rows] = narrow @ weight
        if self.of_weight is not None:
            add_product(self.of_weight, narrow.T, hidden[tile.rows])
