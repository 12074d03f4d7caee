"""A real SGLang server on a machine without a GPU, as `make test-engines` installs it: its settings and its model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from family_lab import FAMILIES
from transformers import Qwen2Config, Qwen2ForCausalLM

from gradbus_rollout.engines.sglang import SGLangConfig, SGLangSettings
from gradbus_rollout.engines.sglang.server import Server

PYTHON = os.environ.get("GRADBUS_TEST_SGLANG", "")
URL = os.environ.get("GRADBUS_TEST_SGLANG_URL", "")
"""URL of a running server with the key below and the contract's model; empty: the tests start one."""
VOCAB = 40
KEY = "of-the-tests"
ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-cuda-graph", "--disable-overlap-schedule", "--sleep-on-idle", "--dtype", "float32"),
    *("--mem-fraction-static", "0.1", "--max-total-tokens", "16384"),
)
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(Path(__file__).parent / "shims"),
}
_TIED = {"tie_word_embeddings": True}
_HALVES = {"head_dim": 16}
"""SGLang's class divides the hidden size by the heads, whatever config.json says."""
SERVED = {
    "qwen3": _TIED,
    "mistral": {"sliding_window": None},
    "gemma3_text": FAMILIES["gemma3_text"] | _TIED,
    "qwen3_moe": FAMILIES["qwen3_moe"] | {"mlp_only_layers": []},
    "mixtral": FAMILIES["mixtral"] | _HALVES | {"sliding_window": None},
    "glm4": _TIED,
    "olmo2": _HALVES,
    "phi3": FAMILIES["phi3"] | {"sliding_window": None},
}
"""By `model_type`, what is odd in the family and computed by its class in SGLang 0.5.21, on a CPU too."""


def settings(**changes) -> SGLangSettings:
    """Settings that launch a server here; skips the test where SGLang is not installed."""
    if not PYTHON:
        pytest.skip("needs the SGLang server that `make test-engines` sets up")
    fixed = {"python": PYTHON, "arguments": ARGUMENTS, "environment": ENVIRONMENT, "threads": 1, "key": KEY}
    limits = {"start_seconds": 600.0, "load_seconds": 60.0, "sample_seconds": 200.0}
    return SGLangSettings(**fixed | limits | changes)


def variables(*arguments: str) -> dict[str, str]:
    """The same settings as a worker's environment variables, with more flags of the server."""
    chosen = settings()
    return {
        "GRADBUS_SGLANG_PYTHON": chosen.python,
        "GRADBUS_SGLANG_ARGUMENTS": json.dumps([*chosen.arguments, *arguments]),
        "GRADBUS_SGLANG_ENVIRONMENT": json.dumps(chosen.environment),
        "GRADBUS_SGLANG_THREADS": str(chosen.threads),
    }


def make_folder(folder):
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.1,  # at 0.3 any float32 forward, transformers' too, is up to 2e-5 from float64
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config).eval()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model


@pytest.fixture
def model(tmp_path):
    return make_folder(tmp_path)


@pytest.fixture
def weights(tmp_path, model):
    return tmp_path / "model.safetensors"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sglang_url(tmp_path_factory):
    """One server for all tests: it takes half a minute to start. Engines attach to it."""
    chosen = settings()
    if URL:
        yield URL
        return
    folder = tmp_path_factory.mktemp("sglang")
    make_folder(folder)
    server = Server(folder, SGLangConfig(slots=64), chosen, folder / "server.log")
    await server.start()
    yield server.api.url
    await server.close()
