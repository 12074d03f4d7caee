"""Inputs and results of the passes of `selected_logprob`, the same for every implementation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RowInputs(NamedTuple):
    """Arguments after their checks; `ids` of ignored rows are 0, and `valid` bool `[N]` is None if no row can be ignored."""

    logits: Tensor
    ids: Tensor
    other_logits: Tensor | None
    valid: Tensor | None
    temperature: float

    @property
    def accumulator(self) -> torch.dtype:
        """The dtype of sums and results."""
        return torch.promote_types(self.logits.dtype, torch.float32)


class RowStatistics(NamedTuple):
    """Results of the forward pass, `[N]` each. A normaliser `[N, 2]` is a sum of two numbers, which keeps it exact for large logits."""

    logprobs: Tensor
    entropy: Tensor | None
    kl: Tensor | None
    other_logprobs: Tensor | None
    normaliser: Tensor
    """log sum exp(logits / temperature)."""
    other_normaliser: Tensor | None
    apart: Tensor | None = None
    """Triton only: the mean log-ratio minus that of the likeliest token; a small number where that token is nearly certain."""


class RowGradients(NamedTuple):
    """Gradients of the loss in each row's outputs, `[N]`; None: the loss does not depend on that output."""

    logprobs: Tensor | None
    entropy: Tensor | None
    kl: Tensor | None
