"""Models by their config.json alone, and specs."""

import json

from gradbus.formats.model_config import read_model_config
from gradbus.spec import RunSpec

SIZES = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
"""Qwen2.5-0.5B's."""


def model_config(folder, **fields):
    (folder / "config.json").write_text(json.dumps(SIZES | fields))
    return read_model_config(folder)


def run_spec(**sections):
    body = {"name": "plan", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
    return RunSpec.model_validate(body | {"schedule": {"steps": 10}} | sections)
