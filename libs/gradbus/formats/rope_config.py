"""What config.json says about rotary position embedding (Su et al. 2021), for each layer."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradbus.errors import ModelError
from gradbus.formats.config_fields import LONGROPE, MAX_CONTEXT, misstated, number, value_of
from gradbus.formats.hf_model import long_factors_begin, positive
from gradbus.formats.model_families import ModelFamily

_STRETCHED: Final = frozenset({"llama3", "yarn"})
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_MAX_FACTOR: Final = 1e6
_MAX_THETA: Final = 1e12
_NO_SCALING: Final = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "max_position_embeddings"})


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base, how it is stretched for longer contexts, and how much of a head it turns."""

    theta: float
    kind: str
    """One of the family's `rope_kinds`."""
    scaling: Mapping[str, float]
    partial: float = 1.0
    """The share of a head's elements, from the first on, that is turned."""
    factors: tuple[float, ...] = ()
    """With longrope, what divides the frequency of each pair."""
    query_beta: float = 0.0
    """Queries at position p are multiplied by 1 + beta · log(1 + floor(p / `original_max_position_embeddings`))."""

    def turned(self, head_dim: int) -> int:
        """How many elements of a head are turned."""
        return int(head_dim * self.partial)


def read_ropes(fields: Mapping[str, Any], family: ModelFamily, kinds: tuple[str, ...]) -> tuple[RopeConfig | None, ...]:
    """The embedding of each layer, whose kinds are as in `layer_types`; None for a layer that turns nothing. Raises ModelError."""
    stated = _parameters(fields)
    if "full_attention" in stated or "sliding_attention" in stated:
        ropes = {kind: _rope(fields, _nested(stated, kind), family, _theta_field(family, kind)) for kind in set(kinds)}
    else:
        ropes = dict.fromkeys(kinds, _rope(fields, stated, family))
        if family.local_rope_theta and "sliding_attention" in ropes:
            ropes["sliding_attention"] = RopeConfig(_theta({**fields, **stated}, family.local_rope_theta), "default", {})
    turned = layers_with_rope(fields, len(kinds)) if family.has_layers_without_rope else (True,) * len(kinds)
    return tuple(ropes[kind] if turns else None for kind, turns in zip(kinds, turned, strict=True))


def _parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5 writes `rope_parameters`; earlier versions wrote `rope_theta` and an optional `rope_scaling`."""
    parameters = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise misstated("rope_scaling", parameters)
    return parameters


def _nested(stated: Mapping[str, Any], kind: str) -> dict[str, Any]:
    parameters = stated.get(kind)
    if not isinstance(parameters, dict):
        raise misstated(f"rope_parameters.{kind}", parameters)
    return parameters


def _theta_field(family: ModelFamily, kind: str) -> str:
    """The field with the base of a kind of layer whose own parameters state none."""
    return (kind == "sliding_attention" and family.local_rope_theta) or "rope_theta"


def _rope(fields: Mapping[str, Any], parameters: Mapping[str, Any], family: ModelFamily, theta_field: str = "rope_theta") -> RopeConfig:
    theta = _theta({"rope_theta": value_of(parameters, "rope_theta", fields.get(theta_field))}, "rope_theta")
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    kind = "longrope" if kind in LONGROPE else kind
    if kind not in family.rope_kinds:
        named = ", ".join(family.rope_kinds)
        raise ModelError(f"config.json asks for rope type {reprlib.repr(kind)}, which is not computed; choose a model with one of {named}")
    share = value_of({**fields, **parameters}, "partial_rotary_factor", 1.0)
    if share != 1.0 and not family.has_partial_rope:
        raise ModelError(
            f"config.json asks for partial_rotary_factor = {reprlib.repr(share)}, which is not computed for {family.architecture}; "
            "choose another model"
        )
    partial = number({"partial_rotary_factor": share}, "partial_rotary_factor", 1.0, most=1.0)
    if kind == "longrope":
        return RopeConfig(theta, kind, _longrope_scaling(fields, parameters), partial, _factors(parameters))
    scaling = {} if kind == "default" else _scaling(fields, parameters, kind)
    return RopeConfig(theta, kind, scaling, partial, query_beta=_query_beta(parameters, kind) if family.has_query_scale else 0.0)


def _query_beta(parameters: Mapping[str, Any], kind: str) -> float:
    """0: none. It needs a length to count in, which only some kinds state."""
    name = "llama_4_scaling_beta"
    if value_of(parameters, name, 0.0) == 0.0:
        return 0.0
    if kind not in _STRETCHED:
        raise misstated("rope_type", kind)
    return number(parameters, name, 0.0, 0.0, _MAX_FACTOR)


def _theta(fields: Mapping[str, Any], name: str) -> float:
    return number(fields, name, 10_000.0, 1.0, _MAX_THETA)


def _scaling(fields: Mapping[str, Any], parameters: Mapping[str, Any], kind: str) -> dict[str, float]:
    scaling = {name: float(value) for name, value in parameters.items() if isinstance(value, int | float) and name not in _NO_SCALING}
    if kind in _STRETCHED:
        original = fields.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
        stated = {"original_max_position_embeddings": original or fields["max_position_embeddings"]}
        scaling |= {name: float(positive(stated, name, MAX_CONTEXT)) for name in stated}
    for name in _NEEDED[kind]:
        if name not in scaling:
            raise misstated(name, parameters.get(name))
    for name, value in scaling.items():
        # A switch such as `truncate` may be off; what divides or is under a logarithm is above 0.
        if not 0.0 <= value <= max(_MAX_FACTOR, MAX_CONTEXT) or (name in {*_NEEDED[kind], "beta_fast", "beta_slow"} and value == 0.0):
            raise misstated(name, value)
    if kind == "llama3" and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise misstated("high_freq_factor", scaling["high_freq_factor"])
    return scaling


def _longrope_scaling(fields: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, float]:
    """The factor of cosines and sines (Ding et al. 2024, arXiv:2402.13753), which is the same for all lengths."""
    if parameters.get("attention_factor") is not None:
        return {"attention_factor": number(parameters, "attention_factor", 1.0, 0.0, _MAX_FACTOR)}
    original = long_factors_begin(fields) or positive(fields, "max_position_embeddings")
    stretched = number(parameters, "factor", positive(fields, "max_position_embeddings") / original, 0.0, _MAX_FACTOR)
    return {"attention_factor": math.sqrt(1.0 + math.log(stretched) / math.log(max(2, original))) if stretched > 1.0 else 1.0}


def _factors(parameters: Mapping[str, Any]) -> tuple[float, ...]:
    """Those of sequences within the context: `short_factor`."""
    listed = parameters.get("short_factor")
    if not isinstance(listed, list) or not listed:
        raise misstated("short_factor", listed)
    return tuple(number({"short_factor": factor}, "short_factor", 0.0, 1.0 / _MAX_FACTOR, _MAX_FACTOR) for factor in listed)


def layers_with_rope(fields: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Whether each layer has the embedding: listed, or all but every nth. Raises ModelError."""
    listed = fields.get("no_rope_layers")
    if listed is None:
        interval = positive(fields, "no_rope_layer_interval", MAX_CONTEXT, default=4)
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    if not isinstance(listed, list) or len(listed) != layers or not all(entry in (0, 1) for entry in listed):
        raise misstated("no_rope_layers", listed)
    return tuple(bool(entry) for entry in listed)
