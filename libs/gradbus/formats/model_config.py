"""The one reading of config.json: the sizes and settings of a forward, and the tensors that follow from them. No torch.

Sizes are bounded before anything is computed from them, so that a reading takes no more time and memory than config.json itself.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gradbus.errors import ModelError
from gradbus.formats.hf_model import CONFIG, positive, read_object
from gradbus.formats.model_families import ModelFamily, Stated, family_of

Shape = tuple[int, ...]

_STRETCHED: Final = frozenset({"llama3", "yarn"})
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_MAX_LAYERS: Final = 1024
_MAX_WIDTH: Final = 1 << 17
_MAX_INTERMEDIATE: Final = 1 << 19
_MAX_HEADS: Final = 1024
_MAX_HEAD_DIM: Final = 1024
_MAX_HEADS_WIDTH: Final = 16
"""All heads together over the hidden size. Models have up to 2; a small file with wide heads would take a cache of terabytes."""
_MAX_CONTEXT: Final = 1 << 24
_MAX_FACTOR: Final = 1e6
_MAX_THETA: Final = 1e12


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base, and how it is stretched for longer contexts."""

    theta: float
    kind: str
    """One of the family's `rope_kinds`."""
    scaling: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder with RMSNorm, rotary grouped-query attention, SwiGLU and a linear head with nothing after it."""

    family: ModelFamily
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool
    rope: RopeConfig
    windows: tuple[int | None, ...]
    """For each layer, the number of tokens that a token sees back, itself included; None: all."""

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.windows)

    @property
    def unfused_features(self) -> tuple[str, ...]:
        """Features that only `gradbus_kernels.models.decoder` computes, and neither `invariant_decoder` nor the embedded engine."""
        present = {
            "a sliding window": any(window is not None for window in self.windows),
            "attention_bias": self.out_bias,
            "mlp_bias": self.mlp_bias,
        }
        return tuple(name for name, used in present.items() if used)

    @property
    def kv_width(self) -> int:
        """Elements of one position's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim


def read_model_config(folder: Path) -> ModelConfig:
    """Configuration of the model in `folder`; ModelError when config.json is broken or asks for a feature that no forward here computes."""
    stated: Mapping[str, Any] = read_object(folder / CONFIG)
    family = family_of(stated.get("model_type"))
    fields = {**family.defaults, **stated}
    _refuse_unsupported(fields)
    return _checked(_model_config(fields, family))


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name to shape of every weight, named and ordered as by transformers; `[out, in]` for a linear layer."""
    embedding = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": embedding}
    layer = dict(_layer_shapes(config))
    for number in range(config.layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (config.hidden_size,)
    return shapes if config.tied else shapes | {"lm_head.weight": embedding}


def redundant_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name to shape of tensors that older folders store and no forward reads: a tied head, and the frequencies of the rotary embedding."""
    frequencies = (config.head_dim // 2,)
    shapes: dict[str, Shape] = {f"model.layers.{number}.self_attn.rotary_emb.inv_freq": frequencies for number in range(config.layers)}
    return shapes | {"lm_head.weight": (config.vocab_size, config.hidden_size)} if config.tied else shapes


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    projections = (
        ("self_attn.q_proj", query, hidden, config.qkv_bias),
        ("self_attn.k_proj", key, hidden, config.qkv_bias),
        ("self_attn.v_proj", key, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, query, config.out_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    )
    for name, rows, columns, biased in projections:
        yield f"{name}.weight", (rows, columns)
        if biased:
            yield f"{name}.bias", (rows,)
        if name == "self_attn.o_proj" and config.family.qk_norm:
            yield from (("self_attn.q_norm.weight", (config.head_dim,)), ("self_attn.k_norm.weight", (config.head_dim,)))
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", (hidden,)


def _checked(config: ModelConfig) -> ModelConfig:
    if config.heads % config.kv_heads or config.head_dim % 2:
        sizes = f"{config.heads} heads of size {config.head_dim} over {config.kv_heads} key-value heads"
        raise ModelError(f"config.json asks for {sizes}, which do not divide; save the model again with transformers")
    if config.heads * config.head_dim > _MAX_HEADS_WIDTH * config.hidden_size:
        sizes = f"{config.heads} heads of size {config.head_dim} over a hidden size of {config.hidden_size}"
        raise ModelError(f"config.json asks for {sizes}, at most {_MAX_HEADS_WIDTH} times as wide are taken; choose another model")
    return config


def _model_config(fields: Mapping[str, Any], family: ModelFamily) -> ModelConfig:
    heads, layers = positive(fields, "num_attention_heads", _MAX_HEADS), positive(fields, "num_hidden_layers", _MAX_LAYERS)
    hidden, vocabulary = positive(fields, "hidden_size", _MAX_WIDTH), positive(fields, "vocab_size")
    for name in ("bos_token_id", "eos_token_id"):
        _check_token_ids(fields, name, vocabulary)
    return ModelConfig(
        family=family,
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=positive(fields, "intermediate_size", _MAX_INTERMEDIATE),
        heads=heads,
        kv_heads=positive(fields, "num_key_value_heads", heads, default=heads),
        head_dim=positive(fields, "head_dim", _MAX_HEAD_DIM, default=hidden // heads),
        norm_eps=_number(fields, "rms_norm_eps", 1e-6, most=1.0),
        context_length=positive(fields, "max_position_embeddings"),
        qkv_bias=_is_stated(family.qkv_bias, fields),
        out_bias=_is_stated(family.out_bias, fields),
        mlp_bias=_is_stated(family.mlp_bias, fields),
        tied=_is_stated(family.tied, fields),
        rope=_rope(fields, family),
        windows=_windows(fields, layers) if family.sliding_window else (None,) * layers,
    )


def _rope(fields: Mapping[str, Any], family: ModelFamily) -> RopeConfig:
    """transformers 5 writes `rope_parameters`; earlier versions wrote `rope_theta` and an optional `rope_scaling`."""
    parameters = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise _misstated("rope_scaling", parameters)
    stated = {"rope_theta": _value(parameters, "rope_theta", fields.get("rope_theta"))}
    theta = _number(stated, "rope_theta", 10_000.0, 1.0, _MAX_THETA)
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    if kind not in family.rope_kinds:
        named = ", ".join(family.rope_kinds)
        raise ModelError(f"config.json asks for rope type {reprlib.repr(kind)}, which is not computed; choose a model with one of {named}")
    if kind == "default":
        return RopeConfig(theta, kind, {})
    return RopeConfig(theta, kind, _rope_scaling(fields, parameters, kind))


def _rope_scaling(fields: Mapping[str, Any], parameters: Mapping[str, Any], kind: str) -> dict[str, float]:
    names = {"rope_type", "type", "rope_theta"}
    scaling = {name: float(value) for name, value in parameters.items() if isinstance(value, int | float) and name not in names}
    if kind in _STRETCHED:
        original = fields.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
        stated = {"original_max_position_embeddings": original or fields["max_position_embeddings"]}
        scaling |= {name: float(positive(stated, name, _MAX_CONTEXT)) for name in stated}
    for name in _NEEDED[kind]:
        if name not in scaling:
            raise _misstated(name, parameters.get(name))
    for name, value in scaling.items():
        # A switch such as `truncate` may be off; what divides or is under a logarithm is above 0.
        if not 0.0 <= value <= max(_MAX_FACTOR, _MAX_CONTEXT) or (name in {*_NEEDED[kind], "beta_fast", "beta_slow"} and value == 0.0):
            raise _misstated(name, value)
    if kind == "llama3" and scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise _misstated("high_freq_factor", scaling["high_freq_factor"])
    return scaling


def _windows(fields: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Newer folders list `layer_types`; before transformers 4.53, layers from `max_window_layers` on had the window."""
    first = _value(fields, "max_window_layers", 28)
    if not isinstance(first, int):
        raise _misstated("max_window_layers", first)
    kinds = fields.get("layer_types") or ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in ("sliding_attention", "full_attention") for kind in kinds):
        raise _misstated("layer_types", kinds)
    used = _flag(fields, "use_sliding_window")
    window = positive({"sliding_window": 4096, **fields}, "sliding_window", _MAX_CONTEXT) if used else None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _check_token_ids(fields: Mapping[str, Any], name: str, vocabulary: int) -> None:
    """Refuses ids that the model does not have. A folder may state none, one or a list."""
    value = fields.get(name)
    for token in value if isinstance(value, list) else [] if value is None else [value]:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
            raise _misstated(name, value)


def _is_stated(stated: Stated, fields: Mapping[str, Any]) -> bool:
    """The value of a property that all models of a family have, or that config.json states."""
    return _flag(fields, stated) if isinstance(stated, str) else stated


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = _value(fields, name, False)
    if not isinstance(value, bool):
        raise _misstated(name, value)
    return value


def _number(fields: Mapping[str, Any], name: str, default: float, least: float = 0.0, most: float = math.inf) -> float:
    """A number above `least` and at most `most`."""
    value = _value(fields, name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least < value <= most:
        raise _misstated(name, value)
    return float(value)


def _value(fields: Mapping[str, Any], name: str, default: Any) -> Any:
    value = fields.get(name)
    return default if value is None else value


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    asked = {
        "hidden_act": fields.get("hidden_act", "silu") != "silu",
        "partial_rotary_factor": _value(fields, "partial_rotary_factor", 1.0) != 1.0,
        "quantization_config": bool(fields.get("quantization_config")),
    }
    faults = [f"{name} = {reprlib.repr(fields.get(name))}" for name, wrong in asked.items() if wrong]
    if faults:
        raise ModelError(f"config.json asks for {', '.join(faults)}, which is not computed; choose another model")


def _misstated(name: str, value: object) -> ModelError:
    return ModelError(f"config.json lacks or misstates {name} ({reprlib.repr(value)}); save the model again with transformers")
