"""Low-rank adapters in peft's format: names and shapes of tensors, and adapter_config.json. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gradbus.spec import LoraSpec

ADAPTER_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


def adapter_names(weight: str) -> tuple[str, str]:
    """Names of the adapter's tensors A and B for the linear layer with this weight."""
    owner = PREFIX + weight.removesuffix(".weight")
    return owner + _DOWN, owner + _UP


def adapter_shapes(weights: Mapping[str, Sequence[int]], lora: LoraSpec) -> dict[str, tuple[int, ...]]:
    """Name to shape of all adapter tensors of a model. `weights` gives the shapes of its weights, `[out, in]` for a linear layer."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in weights.items():
        owner, _, kind = name.rpartition(".")
        if kind == "weight" and owner.rpartition(".")[2] in lora.target_modules:
            down, up = adapter_names(name)
            shapes |= {down: (lora.rank, shape[1]), up: (shape[0], lora.rank)}
    return shapes


def adapter_config(lora: LoraSpec, base_model: str = "") -> bytes:
    """Content of peft's `adapter_config.json`."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": list(lora.target_modules),
        "lora_dropout": 0.0,
        "bias": "none",
        "modules_to_save": None,
        "inference_mode": True,
    }
    return json.dumps(config, indent=2).encode()
