"""The weights of a critic that stay those of the base model."""

from __future__ import annotations

from typing import Final

from gradbus.errors import ModelError
from gradbus_kernels.models.language_model import LanguageModel

_ATTENTION: Final = frozenset({"self_attn", "linear_attn", "attention", "self_attention", "attn"})
"""What a layer of attention is called in a model's module: those of Gradbus's decoder, and of transformers' models."""


def freeze_attention(model: LanguageModel) -> None:
    """Takes the weights of attention from those that are trained (SAO, arXiv:2607.07508). Raises ModelError if there are none."""
    found = [parameter for name, parameter in model.named_parameters() if _ATTENTION & set(name.split("."))]
    if not found:
        raise ModelError(f'the attention of {model.family.architecture} is not known by name; set trainer.critic.freeze = "none"')
    for parameter in found:
        parameter.requires_grad_(False)
