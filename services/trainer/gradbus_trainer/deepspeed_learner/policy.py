"""The model as ZeRO-3 needs it: every weight is used inside the module that owns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from gradbus_kernels.decoder import CausalLM
from gradbus_kernels.operators import linear_logprob
from gradbus_kernels.packing import TokenSequence, pack


class Policy(torch.nn.Module):
    """A causal language model whose forward gives log-probabilities; see `gradbus_kernels.causal_lm.packed_logprobs`."""

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.body = model.model
        self.head = _Head(model.head_weight)

    def forward(self, sequences: Sequence[TokenSequence], temperature: float, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies of all response tokens, float32 [R] each."""
        batch = pack(sequences, device)
        hidden: torch.Tensor = self.body(batch)
        answer: tuple[torch.Tensor, torch.Tensor] = self.head(hidden.index_select(0, batch.selected), batch.targets, temperature)
        return answer


class _Head(torch.nn.Module):
    """Shares its weight with the embedding if the model ties them."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        found = linear_logprob(hidden.float(), self.weight.float(), targets, temperature=temperature, allow_nan=True)
        return found.logprobs, cast("torch.Tensor", found.entropies)
