"""Tiny models of every supported family."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

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
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
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


@pytest.fixture(scope="session", params=sorted(FAMILIES))
def any_model_folder(request, tmp_path_factory):
    """A model folder of each family in turn."""
    return _saved(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def qwen2_folder(tmp_path_factory):
    return _saved("qwen2", tmp_path_factory)


def _saved(family, tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(family)
    FAMILIES[family]().save_pretrained(folder)
    return folder
