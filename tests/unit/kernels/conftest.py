"""Tiny models of three families in all their variants; tests/contract/family_lab.py has every family."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 29
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}


def llama(**changes):
    return LlamaForCausalLM(LlamaConfig(**SIZES | changes))


def qwen2(**changes):
    return Qwen2ForCausalLM(Qwen2Config(**SIZES | changes))


def qwen3(**changes):
    return Qwen3ForCausalLM(Qwen3Config(**SIZES | {"head_dim": 12} | changes))


VARIANTS = {
    "llama": lambda: llama(tie_word_embeddings=False),
    "llama-one-key-head": lambda: llama(num_key_value_heads=1),
    "llama-a-key-head-each": lambda: llama(num_key_value_heads=4, tie_word_embeddings=True),
    "llama-biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama-wide-heads": lambda: llama(head_dim=12),
    "llama-linear": lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}),
    "llama-llama3": lambda: llama(rope_parameters=LLAMA3),
    "llama-yarn": lambda: llama(rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "beta_slow": 0.1, "truncate": False}),
    "qwen2": lambda: qwen2(tie_word_embeddings=True),
    "qwen2-untied": lambda: qwen2(tie_word_embeddings=False),
    "qwen2-wide-heads": lambda: qwen2(head_dim=12),
    "qwen2-yarn": lambda: qwen2(rope_parameters=YARN),
    "qwen2-yarn-given": lambda: qwen2(rope_parameters=YARN | {"attention_factor": 1.3, "beta_fast": 4.0, "beta_slow": 4.0}),
    "qwen3": lambda: qwen3(tie_word_embeddings=True),
    "qwen3-untied-biases": lambda: qwen3(tie_word_embeddings=False, attention_bias=True),
    "qwen3-yarn": lambda: qwen3(rope_parameters=YARN, num_key_value_heads=1),
    "qwen3-window": lambda: qwen3(use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen2-window": lambda: qwen2(use_sliding_window=True, sliding_window=4, max_window_layers=1),
}


@dataclass(frozen=True)
class Tokens:
    prompt_ids: np.ndarray
    token_ids: np.ndarray = field(default_factory=lambda: np.array([1], np.int32))


@pytest.fixture
def make_tokens():
    """Builds a sequence of given lengths; the prompt is a function of its seed, so that prompts can be shared."""

    def make(prompt, response, prompt_seed=0, seed=0):
        draw = np.random.default_rng((prompt_seed, prompt)).integers
        again = np.random.default_rng((seed, response, 7)).integers
        return Tokens(draw(0, VOCABULARY, prompt).astype(np.int32), again(0, VOCABULARY, response).astype(np.int32))

    return make


@pytest.fixture(scope="session", params=sorted(VARIANTS))
def any_model_folder(request, tmp_path_factory):
    """A model folder of each variant in turn."""
    return _saved(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory):
    return _saved("qwen2", tmp_path_factory)


def _saved(variant, tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(variant)
    model = VARIANTS[variant]()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, 1.0, 0.3)  # zeros and ones would hide what is never used
    model.save_pretrained(folder)
    return folder
