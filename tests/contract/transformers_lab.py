"""Tiny random models of families that transformers computes, as folders of users."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final

import torch
from family_lab import SIZES
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

_EXPERTS: Final = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MLA: Final = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
_DELTA: Final = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}

PACKED: Final[Mapping[str, Mapping[str, object]]] = {
    "cohere": {"logit_scale": 0.25},
    "deepseek_v3": _EXPERTS | _MLA,
    "exaone4": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "gpt2": {},
    "gpt_neox": {},
    "minimax_m2": _EXPERTS,
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "starcoder2": {"sliding_window": 6},
}
"""By `model_type`, what a model has beside SIZES. Their sequences are packed."""
ROWS: Final[Mapping[str, Mapping[str, object]]] = {
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2},
    "nemotron_h": {
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "layers_block_type": ["mamba", "attention", "moe"],
        "n_routed_experts": 4,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "num_experts_per_tok": 2,
    },
    "qwen3_5_text": _DELTA,
    "qwen3_next": _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 32},
    "stablelm": {},
}
"""The same for models whose sequences are rows."""
RECURRENT: Final = ("lfm2", "mamba2", "nemotron_h", "qwen3_5_text", "qwen3_next")
"""Those of ROWS with a state that packing would carry over."""


def make_transformers_model(model_type: str, **changes: object) -> PreTrainedModel:
    """A model with random weights, biases and norms, so that none of them can be left out unnoticed."""
    torch.manual_seed(0)
    known = AutoConfig.for_model(model_type)
    sizes = {
        name: value for name, value in SIZES.items() if hasattr(known, name) and not isinstance(getattr(type(known), name, None), property)
    }
    config = AutoConfig.for_model(model_type, **copy.deepcopy(sizes | dict((PACKED | ROWS)[model_type]) | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.2)
    return model
