"""Sizes of families that transformers computes: parameters beside published ones, and what cannot be known."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from gradbus.errors import ModelError
from gradbus.plan import read_size

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
}
STARCODER = {
    "model_type": "starcoder2",
    "architectures": ["Starcoder2ForCausalLM"],
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "vocab_size": 49152,
    "max_position_embeddings": 16384,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
}
BAMBA = GPT2 | {"model_type": "bamba", "architectures": ["BambaForCausalLM"], "mamba_n_heads": 8}


def size_of(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return read_size(folder)


@pytest.mark.parametrize(("config", "parameters"), [(GPT2, 124.4e6), (STARCODER, 3.03e9), (DEEPSEEK, 671e9)])
def test_parameters_are_those_that_are_published(tmp_path, config, parameters):
    assert size_of(tmp_path, config).parameters == pytest.approx(parameters, rel=0.01)


def test_a_token_goes_through_few_experts_and_caches_its_latent(tmp_path):
    size = size_of(tmp_path, DEEPSEEK)
    assert size.active + size.embedding == pytest.approx(37e9, rel=0.03)
    assert size.cached == 61 * (512 + 64)
    assert size.read_by(1) == pytest.approx(size.active)


def test_what_cannot_be_known_is_refused_until_the_weights_are_there(tmp_path):
    with pytest.raises(ModelError, match=r"layers with a state \(mamba_n_heads\)"):
        size_of(tmp_path, BAMBA)
    save_file({"a": np.zeros((300, 1000), np.float16), "b": np.zeros(7, np.float16)}, tmp_path / "model.safetensors")
    assert size_of(tmp_path, BAMBA).parameters == 300_007
    with pytest.raises(ModelError, match="states no hidden size"):
        size_of(tmp_path, {name: value for name, value in GPT2.items() if name != "n_embd"})
