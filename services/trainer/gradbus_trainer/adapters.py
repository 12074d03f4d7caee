"""What a learner that trains adapters does in another way than one that trains every weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from gradbus.spec import LoraSpec
from gradbus_kernels.causal_lm import check_shapes
from gradbus_kernels.grpo_loss import PolicyTokens
from gradbus_kernels.lora import adapters_off

Tensors = Mapping[str, torch.Tensor]


def trained_part(
    lora: LoraSpec | None, base: Mapping[str, torch.Size], weights: Tensors, optimizer_tensors: Tensors
) -> tuple[Tensors, Tensors]:
    """A checkpoint's trained tensors and their moments. `base` are the model's shapes.

    Adapters lie among the optimiser's tensors: the merged weights do not tell them. Raises ModelError when those are another model's.
    """
    if lora is None:
        return weights, optimizer_tensors
    check_shapes(base, weights)
    adapters = {name: tensor for name, tensor in optimizer_tensors.items() if name.endswith(".weight")}
    return adapters, {name: tensor for name, tensor in optimizer_tensors.items() if name not in adapters}


@torch.no_grad()
def with_base_reference(
    tokens: PolicyTokens, model: torch.nn.Module, forward: Callable[[], tuple[torch.Tensor, torch.Tensor]]
) -> PolicyTokens:
    """The tokens with reference log-probabilities: those that `forward` through `model` gives while its adapters are off."""
    with adapters_off(model):
        reference, _ = forward()
    return replace(tokens, reference_logprobs=reference)
