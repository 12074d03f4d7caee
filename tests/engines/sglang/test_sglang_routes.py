"""The routes that a real SGLang server returns, replayed by the trainer's decoder."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest
import sglang_lab
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from gradbus.formats.model_config import read_model_config
from gradbus.v1.group_pb2 import Group
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs
from gradbus_rollout.engines.base import PromptGroup, RouteShape
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine
from gradbus_rollout.tasks.samples import group_message
from gradbus_trainer.step.routes import sample_routes

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
PROMPT = (4, 8, 15, 16, 23)


@dataclass
class Row:
    prompt_ids: np.ndarray
    token_ids: np.ndarray
    routes: np.ndarray


@pytest.fixture
def folder(tmp_path):
    """Three layers of eight experts."""
    torch.manual_seed(3)
    config = Qwen3MoeConfig(
        vocab_size=sglang_lab.VOCAB,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=1024,
        initializer_range=0.2,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


@pytest.fixture
async def engine(folder):
    shape = RouteShape.of(read_model_config(folder))
    found = SGLangEngine(
        folder, SGLangConfig(slots=8, max_new_tokens=200, pause="abort", routes=shape), sglang_lab.settings(), folder / "cache"
    )
    await found.start()
    yield found
    await found.close()


async def test_the_routes_of_whole_and_interrupted_samples_give_the_servers_log_probabilities(engine, folder):
    await engine.load([folder / "model.safetensors"], 0)
    prompt = PromptGroup("0", PROMPT, (1, 2, 3))
    sampling = asyncio.create_task(engine.generate([prompt]))
    await asyncio.sleep(1.0)
    await engine.server.api.abort_all()
    (done,) = await sampling
    lengths = [len(completion.token_ids) for completion in done.completions]
    group = group_message(Group(index=0), prompt, done, [""] * 3)
    rows = [
        Row(np.array(PROMPT, np.int32), np.array(completion.token_ids, np.int32), routes)
        for completion, routes in zip(done.completions, sample_routes(group, len(PROMPT), lengths), strict=True)
    ]
    assert all((row.routes[:-1] >= 0).all() and (row.routes[-1] < 0).all() for row in rows)
    model = load_causal_lm(folder)
    model.replay_routes()
    with torch.no_grad():
        found, _ = packed_logprobs(model, rows, 1.0)
    served = np.concatenate([np.frombuffer(completion.logprobs, "<f4") for completion in done.completions])
    np.testing.assert_allclose(found.numpy(), served, atol=1e-4)
    for row in rows:  # other experts than the server's give other log-probabilities
        row.routes = np.where(row.routes < 0, row.routes, (row.routes + 1) % 8).astype(np.int16)
    with torch.no_grad():
        shifted, _ = packed_logprobs(model, rows, 1.0)
    assert float((shifted - found).abs().mean()) > 0.01
