"""The model as ZeRO-3 needs it: every weight is used inside the module that owns it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.packing import TokenSequence, pack
from gradbus_kernels.operators import Softcapped, linear_logprob

_Answer = TypeVar("_Answer", Tensor, tuple[Tensor, Tensor])
AtHead = Callable[[Tensor, Tensor, Tensor], _Answer]
"""Of hidden states [R, H] and head [V, H] in the model's dtype, and response tokens int64 [R]: an operator on the LM head."""


class Policy(torch.nn.Module):
    """A causal language model whose forward pass ends with an operator on its head, which runs while ZeRO-3 has gathered the head."""

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.body = model.model
        self.head = _Head(model.head_weight)
        self._routes_of = model.routes_of

    def forward(self, sequences: Sequence[TokenSequence], device: torch.device, at_head: AtHead[_Answer]) -> _Answer:
        """The operator's result for all response tokens, in order of sequence and position."""
        batch = pack(sequences, device, self._routes_of(sequences))
        hidden: Tensor = self.body(batch)
        answer: _Answer = self.head(hidden.index_select(0, batch.selected), batch.targets, at_head)
        return answer


class _Head(torch.nn.Module):
    """Shares its weight with the embedding if the model ties them."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, hidden: Tensor, targets: Tensor, at_head: AtHead[_Answer]) -> _Answer:
        return at_head(hidden, self.weight, targets)


def hidden_states(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG001 - as every operator on the head
    """The hidden states themselves, for a critic."""
    return hidden


def logprobs_at(temperature: float | Softcapped) -> AtHead[tuple[Tensor, Tensor]]:
    """Log-probabilities and entropies, float32 [R] each; see `gradbus_kernels.models.causal_lm.packed_logprobs`."""

    def logprobs(hidden: Tensor, weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        found = linear_logprob(hidden, weight, ids, temperature=temperature, allow_nan=True)
        return found.logprobs, cast("Tensor", found.entropies)

    return logprobs
