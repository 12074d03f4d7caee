"""The sizes of the model in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from gradbus.formats.hf_model import CONFIG, read_object, transformers_family
from gradbus.formats.model_config import read_model_config
from gradbus.plan.model_size import ModelSize
from gradbus.plan.stated_size import stated_size

_HALVES: Final = ("bfloat16", "float16")
_DTYPE: Final = ("dtype", "torch_dtype")
"""The field's name in config.json, and the one that it had before version 5 of transformers."""


def read_size(folder: Path) -> ModelSize:
    """By config.json alone, whoever computes the model. Raises ModelError for one that cannot be trained, or that states too little."""
    family = transformers_family(folder)
    size = ModelSize.of(read_model_config(folder)) if family is None else stated_size(folder, family)
    return replace(size, stored_width=_stored_width(folder))


def _stored_width(folder: Path) -> int:
    """Bytes of an element as config.json states it for the model or its text model; else float32, which transformers takes too."""
    config = read_object(folder / CONFIG)
    text = config.get("text_config")
    found = (fields.get(name) for fields in (config, text) if isinstance(fields, dict) for name in _DTYPE)
    return 2 if next((dtype for dtype in found if dtype is not None), None) in _HALVES else 4
