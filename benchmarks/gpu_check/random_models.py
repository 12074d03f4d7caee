"""Model folders with random weights, in the shape of real models; made on the device, because nothing may be fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from gradbus.formats.model_config import read_model_config
from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus_kernels.models.decoder import CausalLM
from gradbus_trainer.step.batch import Batch, TrainSample

Config = dict[str, Any]

_TINY: Final[Config] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
_QWEN2: Final[Config] = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu"}
_LLAMA: Final[Config] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
_GEMMA2: Final[Config] = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh"}
_QWEN3: Final[Config] = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu"}
_QWEN3_MOE: Final[Config] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_act": "silu",
    "norm_topk_prob": True,
}

TINY: Final[Config] = _QWEN2 | _TINY
VARIANTS: Final[dict[str, Config]] = {
    "qwen2": TINY,
    "qwen2, untied, windows": TINY
    | {"tie_word_embeddings": False, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "num_hidden_layers": 3},
    "llama, one key head": _LLAMA | _TINY | {"num_key_value_heads": 1},
    "llama, biases, wide heads": _LLAMA | _TINY | {"attention_bias": True, "mlp_bias": True, "head_dim": 24},
    "gemma2, softcaps": _GEMMA2 | _TINY | {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 4, "attn_logit_softcapping": 3.0},
    "qwen3": _QWEN3 | _TINY | {"head_dim": 32},
    "qwen3_moe": _QWEN3_MOE | _TINY | {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
"""Tiny ones that the decoder must compute as transformers does; those of families that this checkout does not have are left out."""

HALF_BILLION: Final[Config] = TINY | {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_theta": 1e6,
}
"""Qwen2.5-0.5B's sizes."""
_LARGER_SIZES: Final[Config] = HALF_BILLION | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
LARGER: Final[Config] = _LARGER_SIZES | (_QWEN3 if "qwen3" in MODEL_FAMILIES else _LLAMA)
"""Qwen3-1.7B's sizes; without its norms of queries and keys where the decoder lacks them."""

EXPERTS: Final[Config] = (
    _LARGER_SIZES
    | _QWEN3_MOE
    | {"num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32_000}
    | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
)
"""Two layers of Qwen3-30B-A3B."""


def variants() -> Iterator[tuple[str, Config]]:
    """The tiny models of the families that this checkout trains, by name."""
    return ((name, config) for name, config in VARIANTS.items() if config["model_type"] in MODEL_FAMILIES)


def write_model(folder: Path, config: Config, device: str, dtype: torch.dtype = torch.float32) -> Path:
    """The folder, with config.json and weights in `dtype`: matrices of deviation 0.02 or 1/sqrt(width), norms about 1, biases about 0."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")  # nothing here is text
    with torch.device("meta"):
        model = CausalLM(read_model_config(folder))
    draw = torch.Generator(device).manual_seed(0)

    def made(name: str, shape: torch.Size) -> Tensor:
        noise = torch.randn(shape, generator=draw, device=device)
        if len(shape) == 1:
            return (0.1 * noise + (0.0 if name.endswith("bias") else 1.0)).to("cpu", dtype)
        return (noise * max(0.02, shape[-1] ** -0.5)).to("cpu", dtype)

    save_file({name: made(name, parameter.shape) for name, parameter in model.named_parameters()}, folder / "model.safetensors")
    return folder


def parameters(folder: Path) -> tuple[int, int]:
    """The model's parameters, and those of its embedding alone."""
    config = read_model_config(folder)
    with torch.device("meta"):
        total = sum(parameter.numel() for parameter in CausalLM(config).parameters())
    return total, config.vocab_size * config.hidden_size


def batch(step: int, vocabulary: int, groups: int, prompt: int, response: int) -> Batch:
    """Groups of eight random responses to a random prompt each, with log-probabilities of a sampler that knows nothing."""
    rng = np.random.default_rng(step)
    samples = []
    for _ in range(groups):
        question = rng.integers(vocabulary, size=prompt).astype(np.int32)
        for member in range(8):
            length = max(1, response - member % 3)
            behaviour = rng.normal(-np.log(vocabulary), 0.1, length).astype(np.float32)
            tokens = rng.integers(vocabulary, size=length).astype(np.int32)
            samples.append(TrainSample(question, tokens, behaviour, np.ones(length, np.bool_), np.full(length, rng.normal(), np.float32)))
    return Batch(step, samples)
