"""The numbers of config.json that a forward needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradbus.errors import ModelError
from gradbus.model_folder import ModelInfo, check_model_folder


@dataclass(frozen=True, slots=True)
class RopeShape:
    """Rotary position embedding: base, and how it is stretched for longer contexts."""

    theta: float
    kind: str
    """`default`, `linear` or `llama3`."""
    scaling: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ModelShape:
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
    tied: bool
    rope: RopeShape

    @property
    def kv_width(self) -> int:
        """Elements of one position's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim


def read_shape(folder: Path) -> ModelShape:
    """Shape of the model in `folder`; ModelError when it uses what this engine does not compute."""
    info = check_model_folder(folder)
    config = json.loads((folder / "config.json").read_bytes())
    _refuse_unsupported(config)
    try:
        return _shape(config, info)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"config.json in {folder} lacks or misstates {error}; save the model again with transformers") from error


def _shape(config: Mapping[str, Any], info: ModelInfo) -> ModelShape:
    heads = int(config["num_attention_heads"])
    return ModelShape(
        vocab_size=info.vocab_size,
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        context_length=info.context_length,
        qkv_bias=info.architecture == "Qwen2ForCausalLM",
        tied=bool(config.get("tie_word_embeddings", False)),
        rope=_rope(config),
    )


def _rope(config: Mapping[str, Any]) -> RopeShape:
    """transformers 5 writes `rope_parameters`; before it, `rope_theta` stood beside an optional `rope_scaling`."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0)
    kind = str(parameters.pop("rope_type", None) or parameters.pop("type", None) or "default")
    if kind not in {"default", "linear", "llama3"}:
        raise ModelError(f"rope type {kind!r} is not computed here; choose a model with default, linear or llama3")
    return RopeShape(theta, kind, {name: float(value) for name, value in parameters.items() if isinstance(value, int | float)})


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    refused = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "quantization_config": bool(config.get("quantization_config")),
    }
    faults = [f"{name} = {config.get(name)!r}" for name, wrong in refused.items() if wrong]
    if faults:
        raise ModelError(f"config.json asks for {', '.join(faults)}, which the embedded engine does not compute; choose another model")
