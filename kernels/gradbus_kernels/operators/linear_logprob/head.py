"""Arguments, results and the Protocol of the implementations of operators on hidden states and LM head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Head:
    """Arguments after their checks, detached."""

    hidden: Tensor
    """`[N, H]`."""
    weight: Tensor
    """`[V, H]`."""
    ids: Tensor
    """int64 `[N]`."""
    temperature: float
    softcap: float | None = None
    """Bounds the logits before the temperature; None: no bound."""

    @property
    def accumulator(self) -> torch.dtype:
        """The dtype of statistics and sums."""
        return torch.promote_types(self.hidden.dtype, torch.float32)


class Statistics(NamedTuple):
    """Statistics of each token's softmax, `[N]` in the accumulator's dtype."""

    logprobs: Tensor
    entropies: Tensor


class Coefficients(NamedTuple):
    """Derivatives of the loss by log-probability and entropy of some tokens; None: the loss does not use the entropy."""

    logprobs: Tensor
    entropies: Tensor | None


Differentiate = Callable[[slice, Statistics], Coefficients]
"""Maps a slice of the tokens and its statistics to its coefficients."""


class Gradients(NamedTuple):
    """Statistics, and the requested gradients in the dtypes of their tensors."""

    statistics: Statistics
    hidden: Tensor | None
    weight: Tensor | None


class Backend(Protocol):
    """An implementation: the module `cpu` or `triton`."""

    def statistics(self, head: Head, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and, if `entropy`, entropies; without a gradient."""
        ...

    def gradients(self, head: Head, differentiate: Differentiate, wanted: tuple[bool, bool]) -> Gradients:
        """Statistics and gradients in one pass, which computes each slice's logits once. `wanted`: the gradient of hidden, of weight."""
        ...


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left · right, added up in the dtype of `out`."""
    if out.dtype == left.dtype:
        torch.mm(left, right, out=out)
    elif out.is_cuda:
        torch.mm(left, right, out_dtype=out.dtype, out=out)
    else:
        torch.mm(left.to(out.dtype), right.to(out.dtype), out=out)


def add_product(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """sums += left · right, added in the dtype of `sums`."""
    if sums.dtype == left.dtype:
        sums.addmm_(left, right)
    elif sums.is_cuda:
        torch.addmm(sums, left, right, out_dtype=sums.dtype, out=sums)
    else:
        sums.add_(left @ right)
