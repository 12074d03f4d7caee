"""The one reading of config.json: the sizes and settings of a forward, for trainer, reference and embedded engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gradbus.errors import ModelError
from gradbus.formats.hf_model import positive, read_object
from gradbus.formats.model_families import ModelFamily, family_of, is_stated

_STRETCHED: Final = frozenset({"llama3", "yarn"})


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
    fields: Mapping[str, Any] = read_object(folder / "config.json")
    try:
        family = family_of(fields.get("model_type"))
        _refuse_unsupported(fields)
        return _checked(_model_config(fields, family))
    except ModelError as error:
        raise ModelError(f"the model in {folder} cannot be loaded: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"config.json in {folder} lacks or misstates {error}; save the model again with transformers") from error


def _checked(config: ModelConfig) -> ModelConfig:
    if config.heads % config.kv_heads or config.head_dim % 2:
        sizes = f"{config.heads} heads of size {config.head_dim} over {config.kv_heads} key-value heads"
        raise ModelError(f"config.json asks for {sizes}, which do not divide; save the model again with transformers")
    return config


def _model_config(fields: Mapping[str, Any], family: ModelFamily) -> ModelConfig:
    heads, layers = positive(fields, "num_attention_heads"), positive(fields, "num_hidden_layers")
    return ModelConfig(
        family=family,
        vocab_size=positive(fields, "vocab_size"),
        hidden_size=positive(fields, "hidden_size"),
        intermediate_size=positive(fields, "intermediate_size"),
        heads=heads,
        kv_heads=int(fields.get("num_key_value_heads") or heads),
        head_dim=int(fields.get("head_dim") or fields["hidden_size"] // heads),
        norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        context_length=positive(fields, "max_position_embeddings"),
        qkv_bias=is_stated(family.qkv_bias, fields),
        out_bias=is_stated(family.out_bias, fields),
        mlp_bias=is_stated(family.mlp_bias, fields),
        tied=is_stated(family.tied, fields),
        rope=_rope(fields, family),
        windows=_windows(fields, layers) if family.sliding_window else (None,) * layers,
    )


def _rope(fields: Mapping[str, Any], family: ModelFamily) -> RopeConfig:
    """transformers 5 writes `rope_parameters`; earlier versions wrote `rope_theta` and an optional `rope_scaling`."""
    parameters = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
    theta = float(parameters.pop("rope_theta", None) or fields.get("rope_theta") or 10_000.0)
    kind = str(parameters.pop("rope_type", None) or parameters.pop("type", None) or "default")
    if kind not in family.rope_kinds:
        raise ModelError(f"rope type {kind!r} is not computed; choose a model with one of {', '.join(family.rope_kinds)}")
    if kind in _STRETCHED:
        original = fields.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
        parameters["original_max_position_embeddings"] = original or fields["max_position_embeddings"]
    needed = {"linear": ("factor",), "yarn": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}.get(kind, ())
    scaling = {name: float(value) for name, value in parameters.items() if isinstance(value, int | float)}
    return RopeConfig(theta, kind, scaling | {name: scaling[name] for name in needed})


def _windows(fields: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Newer folders list `layer_types`; before transformers 4.53, layers from `max_window_layers` on had the window."""
    first = int(fields.get("max_window_layers", 28))
    kinds = fields.get("layer_types") or ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    if len(kinds) != layers or not {"sliding_attention", "full_attention"}.issuperset(kinds):
        raise ValueError(f"layer_types = {kinds}")
    window = positive({"sliding_window": 4096, **fields}, "sliding_window") if fields.get("use_sliding_window") else None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    asked = {
        "hidden_act": fields.get("hidden_act", "silu") != "silu",
        "partial_rotary_factor": (fields.get("partial_rotary_factor") or 1.0) != 1.0,
        "quantization_config": bool(fields.get("quantization_config")),
    }
    faults = [f"{name} = {fields.get(name)!r}" for name, wrong in asked.items() if wrong]
    if faults:
        raise ModelError(f"config.json asks for {', '.join(faults)}, which is not computed; choose another model")
