"""The sizes of the model in a folder."""

from __future__ import annotations

from pathlib import Path

from gradbus.formats.hf_model import transformers_family
from gradbus.formats.model_config import read_model_config
from gradbus.plan.model_size import ModelSize
from gradbus.plan.stated_size import stated_size


def read_size(folder: Path) -> ModelSize:
    """By config.json alone, whoever computes the model. Raises ModelError for one that cannot be trained, or that states too little."""
    family = transformers_family(folder)
    return ModelSize.of(read_model_config(folder)) if family is None else stated_size(folder, family)
