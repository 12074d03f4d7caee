"""Values in config.json, each with its bounds."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, Final

from gradbus.errors import ModelError

MAX_CONTEXT: Final = 1 << 24
MAX_LAYERS: Final = 1024
MAX_INTERMEDIATE: Final = 1 << 19
LONGROPE: Final = frozenset({"longrope", "su"})
"""Names of the rotary embedding that has other frequencies beyond `original_max_position_embeddings` (Ding et al. 2024)."""


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """True or false; false where the field is missing. Raises ModelError for anything else."""
    value = value_of(fields, name, False)
    if not isinstance(value, bool):
        raise misstated(name, value)
    return value


def stated_flag(stated: bool | str, fields: Mapping[str, Any]) -> bool:
    """The value of a property that all models of a family have, or that the field of this name states. Raises ModelError."""
    return flag(fields, stated) if isinstance(stated, str) else stated


def number(fields: Mapping[str, Any], name: str, default: float, least: float = 0.0, most: float = math.inf) -> float:
    """A number above `least` and at most `most`. Raises ModelError."""
    value = value_of(fields, name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least < value <= most:
        raise misstated(name, value)
    return float(value)


def value_of(fields: Mapping[str, Any], name: str, default: Any) -> Any:
    """The field's value, or the default where it is missing or null."""
    value = fields.get(name)
    return default if value is None else value


def misstated(name: str, value: object) -> ModelError:
    """The error for a value that no model has."""
    return ModelError(f"config.json lacks or misstates {name} ({reprlib.repr(value)}); save the model again with transformers")
