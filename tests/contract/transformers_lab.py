"""Tiny random models of families that transformers computes, as folders of users."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from family_lab import SIZES, save
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3_5Config, Qwen3_5ForConditionalGeneration

_EXPERTS: Final = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
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
    "vaultgemma": {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 1.0},
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
_HYBRID: Final = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_MAMBA: Final = {"mamba_n_heads": 8, "mamba_d_head": 16}
OTHERS: Final[Mapping[str, Mapping[str, object]]] = {
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "cohere2": {"logit_scale": 0.3},
    "cohere2_moe": {"logit_scale": 0.3},
    "deepseek_v2": _MLA,
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": _MAMBA | {"lm_head_multiplier": 0.3, "mamba_d_ssm": 128},
    "glm4_moe_lite": _MLA,
    "gpt_neo": {"attention_types": [[["global", "local"], 1], [["global"], 1]], "window_size": 6},
    "granite_swa": {"logits_scaling": 4.0},
    "granitemoe": {"logits_scaling": 4.0},
    "granitemoe_swa": {"logits_scaling": 4.0},
    "granitemoehybrid": _MAMBA | {"logits_scaling": 4.0, "layer_types": ["mamba", "attention", "mamba"]},
    "granitemoeshared": {"logits_scaling": 4.0},
    "helium": {"head_dim": 16},
    "hyperclovax": {"logits_scaling": 0.25},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": _MLA | _HYBRID,
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "longcat_flash": _MLA | {"num_layers": 2, "zero_expert_num": 2, "expert_ffn_hidden_size": 32, "ffn_hidden_size": 96},
    "minicpm3": _MLA,
    "minimax": _HYBRID,
    "qwen2_moe": {"use_sliding_window": True},
    "qwen3_5_moe_text": _DELTA,
    "nanochat": {"final_logit_softcapping": 2.0},
    "recurrent_gemma": {"logits_soft_cap": 2.0},
    "youtu": _MLA,
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "mamba"],
        "hybrid_layer_ids": [1],
        "num_mem_blocks": 1,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
    },
}
"""What some of the other families have beside SIZES."""
RECURRENT: Final = ("lfm2", "mamba2", "nemotron_h", "qwen3_5_text", "qwen3_next")
"""Those of ROWS with a state that packing would carry over."""


def qwen3_5_of_images(folder: Path) -> Path:
    """A folder of Qwen3.5 as it is published: vision tower, heads that predict several tokens, and the text model under its own prefix."""
    torch.manual_seed(0)
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 16}
    text = AutoConfig.for_model("qwen3_5_text", **copy.deepcopy(_sizes("qwen3_5_text") | _DELTA))
    config = Qwen3_5Config(text_config=text.to_dict(), vision_config=vision)
    save(Qwen3_5ForConditionalGeneration(config), folder)
    tensors = load_file(folder / "model.safetensors") | {"mtp.fc.weight": torch.randn(64, 128).bfloat16()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def _sizes(model_type: str) -> dict[str, object]:
    """Those of SIZES and of some experts that the family states."""
    known, sizes = AutoConfig.for_model(model_type), {**SIZES, **_EXPERTS, "sliding_window": 6, "n_group": 1, "topk_group": 1}
    computed = {name for name in sizes if isinstance(getattr(type(known), name, None), property)}
    return {name: value for name, value in sizes.items() if hasattr(known, name) and name not in computed}


def make_transformers_model(model_type: str, **changes: object) -> PreTrainedModel:
    """A model with random weights, biases and norms, so that none of them can be left out unnoticed."""
    torch.manual_seed(0)
    odd = dict({**OTHERS, **PACKED, **ROWS}.get(model_type, {}))
    config = AutoConfig.for_model(model_type, **copy.deepcopy(_sizes(model_type) | odd | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.2)
    return model
