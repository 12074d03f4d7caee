"""The model whose hidden states a critic reads, and what is trained of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from gradbus.spec import CriticSpec, RunSpec
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_kernels.models.language_model import LanguageModel
from gradbus_kernels.models.lora import add_adapters
from gradbus_trainer.learners.critic.frozen import freeze_attention


class Body(NamedTuple):
    """A model and its trained weights, by name."""

    model: LanguageModel
    trained: Mapping[str, nn.Parameter]


def open_body(folder: Path, spec: RunSpec, settings: CriticSpec, policy: LanguageModel) -> Body:
    """The body of a critic of this kind: the policy itself, or a model of its own, on the policy's device. Raises ModelError."""
    return Body(policy, {}) if settings.kind == "head" else own_body(folder, spec, settings, policy.device, policy)


def own_body(folder: Path, spec: RunSpec, settings: CriticSpec, device: torch.device, policy: LanguageModel | None = None) -> Body:
    """A copy of the base model, float32. Its frozen weights are those of `policy` where this one has the same. Raises ModelError."""
    model = load_causal_lm(folder, torch.float32, str(device))
    model.set_checkpointing(spec.trainer.gradient_checkpointing)
    if (adapters := settings.adapters) is not None:
        if policy is not None:
            _share_frozen(model, policy)
        return Body(model, add_adapters(model, adapters, spec.seed))
    if settings.freeze == "attention":
        freeze_attention(model)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    unused = {id(model.head_weight)} - embeddings
    return Body(model, {name: weight for name, weight in model.trained_parameters().items() if id(weight) not in unused})


def _share_frozen(model: LanguageModel, policy: LanguageModel) -> None:
    """Lets the model use the policy's own weights where these are frozen, beside the policy's adapters, and of the same dtype."""
    held = {name: weight for name, weight in policy.named_parameters() if not weight.requires_grad}
    for name, weight in model.named_parameters():
        if (same := held.get(name)) is not None and same.dtype == weight.dtype:
            weight.data = same.data
