"""The reference of a run that trains adapters: the same model without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from gradbus_kernels.models.lora import adapters_off
from gradbus_kernels.operators import PolicyTokens


@torch.no_grad()
def with_base_reference(
    tokens: PolicyTokens, model: torch.nn.Module, forward: Callable[[], tuple[torch.Tensor, torch.Tensor]]
) -> PolicyTokens:
    """The tokens with reference log-probabilities: those that `forward` through `model` gives while its adapters are off."""
    with adapters_off(model):
        reference, _ = forward()
    return replace(tokens, reference_logprobs=reference)
