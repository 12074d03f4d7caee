"""What the passes of `selected_logprob` hand each other, the same for every implementation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RowInputs(NamedTuple):
    """Checked arguments; `ids` of ignored rows are 0, and `valid` bool `[N]` is None where no row can be ignored."""

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
    """What the forward pass found of each row, `[N]` each. Normalisers `[N, 2]` are sums of two numbers, exact beside large logits."""

    logprobs: Tensor
    entropy: Tensor | None
    kl: Tensor | None
    other_logprobs: Tensor | None
    normaliser: Tensor
    """log sum exp(logits / temperature)."""
    other_normaliser: Tensor | None
    apart: Tensor | None = None
    """Triton's mean log-ratio less that of the likeliest token, small beside it where that token is nearly certain."""


class RowGradients(NamedTuple):
    """Of the loss in each row's outputs, `[N]`; None: the loss does not depend on that output."""

    logprobs: Tensor | None
    entropy: Tensor | None
    kl: Tensor | None
