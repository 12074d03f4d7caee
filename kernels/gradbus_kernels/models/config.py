"""The numbers of config.json that a forward needs: the one reading of it, for trainer, reference and embedded engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gradbus.errors import ModelError
from gradbus.formats.hf_model import MODEL_TYPES, positive, read_object

FAMILIES: Final = frozenset(MODEL_TYPES.values())
"""Model types that are computed. The forward of each is embedding, decoder layers, norm and a linear head with nothing after it."""

_ROPE_KINDS: Final = ("default", "linear", "llama3", "yarn")
_STRETCHED: Final = frozenset({"llama3", "yarn"})


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base, and how it is stretched for longer contexts."""

    theta: float
    kind: str
    """`default`, `linear`, `llama3` or `yarn`."""
    scaling: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family: RMSNorm, grouped-query attention, SwiGLU."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
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
    """Of each layer, how many tokens back (itself included) a token sees; None for all of them."""

    @property
    def kv_width(self) -> int:
        """Elements of one position's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim


def read_model_config(folder: Path) -> ModelConfig:
    """Shape of the model in `folder`; ModelError when config.json is broken or asks for what no forward here computes."""
    config: Mapping[str, Any] = read_object(folder / "config.json")
    try:
        _refuse_unsupported(config)
        return _checked(_shape(config))
    except ModelError as error:
        raise ModelError(f"the model in {folder} cannot be loaded: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"config.json in {folder} lacks or misstates {error}; save the model again with transformers") from error


def _checked(shape: ModelConfig) -> ModelConfig:
    if shape.heads % shape.kv_heads or shape.head_dim % 2:
        sizes = f"{shape.heads} heads of size {shape.head_dim} over {shape.kv_heads} key-value heads"
        raise ModelError(f"config.json asks for {sizes}, which do not divide; save the model again with transformers")
    return shape


def _shape(config: Mapping[str, Any]) -> ModelConfig:
    heads = positive(config, "num_attention_heads")
    llama = config["model_type"] == "llama"
    return ModelConfig(
        vocab_size=positive(config, "vocab_size"),
        hidden_size=positive(config, "hidden_size"),
        intermediate_size=positive(config, "intermediate_size"),
        layers=positive(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        context_length=positive(config, "max_position_embeddings"),
        qkv_bias=bool(config.get("attention_bias")) if llama else True,
        out_bias=llama and bool(config.get("attention_bias")),
        mlp_bias=llama and bool(config.get("mlp_bias")),
        tied=bool(config.get("tie_word_embeddings", False)),
        rope=_rope(config),
        windows=(None,) * config["num_hidden_layers"] if llama else _windows(config),
    )


def _rope(config: Mapping[str, Any]) -> RopeConfig:
    """transformers 5 writes `rope_parameters`; before it, `rope_theta` stood beside an optional `rope_scaling`."""
    parameters = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    theta = float(parameters.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0)
    kind = str(parameters.pop("rope_type", None) or parameters.pop("type", None) or "default")
    if kind not in _ROPE_KINDS:
        raise ModelError(f"rope type {kind!r} is not computed; choose a model with one of {', '.join(_ROPE_KINDS)}")
    if kind in _STRETCHED:
        original = config.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
        parameters["original_max_position_embeddings"] = original or config["max_position_embeddings"]
    needed = {"linear": ("factor",), "yarn": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}.get(kind, ())
    scaling = {name: float(value) for name, value in parameters.items() if isinstance(value, int | float)}
    return RopeConfig(theta, kind, scaling | {name: scaling[name] for name in needed})


def _windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Qwen2 lists `layer_types`; before transformers 4.53, layers from `max_window_layers` on had the window."""
    layers = config["num_hidden_layers"]
    first = int(config.get("max_window_layers", 28))
    kinds = config.get("layer_types") or ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    if len(kinds) != layers or not {"sliding_attention", "full_attention"}.issuperset(kinds):
        raise ValueError(f"layer_types = {kinds}")
    window = positive({"sliding_window": 4096, **config}, "sliding_window") if config.get("use_sliding_window") else None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    if config.get("model_type") not in FAMILIES:
        allowed = ", ".join(sorted(FAMILIES))
        raise ModelError(f"architecture {config.get('model_type')!r} is not supported; use one of {allowed}")
    asked = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "partial_rotary_factor": (config.get("partial_rotary_factor") or 1.0) != 1.0,
        "quantization_config": bool(config.get("quantization_config")),
    }
    faults = [f"{name} = {config.get(name)!r}" for name, wrong in asked.items() if wrong]
    if faults:
        raise ModelError(f"config.json asks for {', '.join(faults)}, which is not computed; choose another model")
