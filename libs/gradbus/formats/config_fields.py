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
_MAX_COUNT: Final = 1024
"""Layers, their experts, elements of a head, and tokens of a chunk, whose square a layer with a state computes."""
_MAX_WHOLE: Final = 1 << 24
_MOST: Final[tuple[tuple[str, float], ...]] = (
    *((part, math.inf) for part in ("theta", "base", "length", "label")),
    ("chunk_size", _MAX_COUNT),
    ("size", _MAX_WHOLE),
    *((part, _MAX_COUNT) for part in ("layer", "experts", "expert_num", "head_dim", "attention_types")),
)
"""Parts of fields' names, of which the first counts, and the largest whole number under such a name and length of such a list."""
_AT_LEAST_ONE: Final = frozenset(
    {
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_attention_heads", "num_heads", "n_head", "n_heads"),
        *("hidden_size", "d_model", "n_embd", "chunk_size"),
    }
)
"""What families call the number of their layers and heads, and the sizes of both and of a chunk."""
_NOT_COMPUTED: Final = ("per_layer_config",)


def check_counts(fields: Mapping[str, Any]) -> None:
    """Raises ModelError for numbers that would make transformers repeat something too often, and for fields that are not computed.

    What a number means is known to transformers alone, and some have several names. So every whole number is bounded, and more so where
    the name speaks of layers, experts, heads or chunks. Weights other than the folder's are found when the model is loaded.
    """
    for name in _NOT_COMPUTED:
        if fields.get(name) is not None:
            raise ModelError(f"config.json has {name}, which is not computed; choose another model")
    for name, value in fields.items():
        if isinstance(value, dict):
            check_counts(value)
        else:
            _check_count(name, value, next((most for part, most in _MOST if part in name), _MAX_WHOLE))


def _check_count(name: str, value: object, most: float) -> None:
    if isinstance(value, list):
        if len(value) > most:
            raise ModelError(f"config.json has {len(value)} values in {name}, at most {most} are taken; choose another model")
        for part in value:
            _check_count(name, part, most)
    elif isinstance(value, int) and (abs(value) > most or (name in _AT_LEAST_ONE and value < 1)):
        raise ModelError(f"config.json has {name} = {reprlib.repr(value)}; it must be a whole number above 0 and at most {most}")


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
