"""Folders of reward models: Hugging Face's sequence classification with one label, over a decoder of `MODEL_FAMILIES`. No torch.

Weights are the decoder's, `model.*`, and the head `score.weight` `[1, hidden_size]`, which has no bias.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gradbus.errors import ModelError
from gradbus.formats.hf_model import CONFIG, ModelInfo, check_model_folder, read_object, stored_files, weight_files
from gradbus.formats.model_config import ModelConfig, read_model_config
from gradbus.formats.model_families import MODEL_FAMILIES, ModelFamily
from gradbus.formats.model_weights import NamePlan, check_weights
from gradbus.formats.safetensors import read_headers

SCORE: Final = "score.weight"
_LONGER: Final = reprlib.Repr()
_LONGER.maxstring = 80  # the names of architectures, whole
REWARD_ARCHITECTURES: Final[Mapping[str, str]] = {
    **{
        name: MODEL_FAMILIES[name].architecture.replace("ForCausalLM", "ForSequenceClassification")
        for name in (
            *("llama", "qwen2", "qwen3", "mistral", "ministral3", "mixtral", "qwen3_moe", "smollm3", "seed_oss", "olmo2", "olmo3"),
            *("gemma2", "phi3", "gpt_oss", "glm4"),
        )
    },
    "gemma3_text": "Gemma3TextForSequenceClassification",
}
"""By `model_type`, transformers' class of a reward model of the family; other families have none."""


def check_reward_folder(path: Path) -> ModelInfo:
    """Reads the folder's ModelInfo: config.json, and the headers of the weights. Raises ModelError if it is not a reward model's."""
    config = read_reward_config(path)
    check_reward_weights(path, config)
    return _info(path, config)


def names_reward_model(config: Mapping[str, Any]) -> bool:
    """Whether a config.json names the architecture of a reward model."""
    return config.get("architectures") in [[name] for name in REWARD_ARCHITECTURES.values()]


def folder_info(path: Path) -> ModelInfo:
    """ModelInfo of a folder with a language model or a reward model, without a look at its weights. Raises ModelError."""
    if not names_reward_model(read_object(path / CONFIG)):
        return check_model_folder(path)
    return _info(path, read_reward_config(path))


def _info(path: Path, config: ModelConfig) -> ModelInfo:
    return ModelInfo(config.family, config.context_length, config.vocab_size, stored_files(path))


def read_reward_family(path: Path) -> ModelFamily:
    """The family of a reward model, by its config.json alone. Raises ModelError for what is no reward model of a family above."""
    config: Mapping[str, Any] = read_object(path / CONFIG)
    named = config.get("architectures")
    model_type = next((name for name, architecture in REWARD_ARCHITECTURES.items() if named == [architecture]), None)
    if model_type is None:
        raise ModelError(
            f"config.json names the architectures {_LONGER.repr(named)}, which are no reward model; use one of "
            f"{', '.join(REWARD_ARCHITECTURES.values())}"
        )
    if config.get("model_type") != model_type:
        given = f"model_type {reprlib.repr(config.get('model_type'))} with architecture {REWARD_ARCHITECTURES[model_type]}"
        raise ModelError(f"config.json says {given}; set model_type to {model_type!r}, or take the folder that belongs together")
    labels = _stated_labels(config)
    if labels not in (None, 1):
        raise ModelError(f"config.json states {labels} labels, and a reward model has one: its score; save it with num_labels = 1")
    return MODEL_FAMILIES[model_type]


def read_reward_config(folder: Path) -> ModelConfig:
    """Configuration of a reward model, without a head for tokens. Raises ModelError."""
    read_reward_family(folder)
    return replace(read_model_config(folder), tied=True)


def check_reward_weights(folder: Path, config: ModelConfig) -> NamePlan:
    """The plan of names.

    Raises ModelError unless the weights are the tensors of a reward model with `config`, in floating point, as their headers say.
    """
    head = read_headers([folder / name for name in weight_files(folder)]).get(SCORE)
    if head is None:
        raise ModelError(f"the weights have no {SCORE}, the head of a reward model; save it by AutoModelForSequenceClassification")
    if len(head.shape) != 2 or head.shape[0] != 1:
        shape = f"[1, {config.hidden_size}]"
        raise ModelError(f"{SCORE} has shape {list(head.shape)}, and a reward model has one label: {shape}; save it with num_labels = 1")
    return check_weights(folder, config, {SCORE: (1, config.hidden_size)})


def _stated_labels(config: Mapping[str, Any]) -> object:
    """`num_labels`, or the number of `id2label`, which transformers writes in place of it unless it has two; None: neither is there."""
    labels = config.get("id2label")
    stated = len(labels) if isinstance(labels, dict) else None
    return config.get("num_labels", stated)
