"""Bounded scores and logits: softcap · tanh(x / softcap) takes the place of x (Gemma 2, arXiv:2408.00118)."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import require


class Softcapped(NamedTuple):
    """A scale of attention scores or a temperature of logits, for models that bound them.

    Scores are bounded after the scale, logits before the temperature.
    """

    value: float
    softcap: float | None

    @classmethod
    def of(cls, given: float | Softcapped) -> Softcapped:
        """What operators take, always with its bound; None: none."""
        return given if isinstance(given, Softcapped) else cls(given, None)

    def check(self, argument: str) -> None:
        """Raises ValueError for a bound that is not a positive number."""
        fine = self.softcap is None or (isfinite(self.softcap) and self.softcap > 0.0)
        require(fine, argument, f"has softcap {self.softcap}; pass a positive number, or None for none")


def softcapped(x: Tensor, softcap: float | None) -> Tensor:
    """The bounded values, differentiable; `x` itself without a bound."""
    return x if softcap is None else torch.tanh(x / softcap) * softcap


def softcap_in_place(x: Tensor, softcap: float | None) -> Tensor:
    """`x`, which now holds its bounded values; without a gradient."""
    return x if softcap is None else x.div_(softcap).tanh_().mul_(softcap)


def softcap_slopes(bounded: Tensor, softcap: float) -> Tensor:
    """Derivatives of bounded values z by what they were: 1 - (z / softcap)². In place."""
    return bounded.div_(softcap).square_().neg_().add_(1.0)
