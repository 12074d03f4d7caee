"""The copying task through the whole stack: adapters are trained here and served by a real SGLang server."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import sglang_lab
import torch
from ledger import check, read_ledger
from smoke import make_example, smoke_spec, train
from transformers import AutoModelForCausalLM

from gradbus.client import Client, document
from gradbus.embedded import Stack, StackConfig
from gradbus.v1.group_pb2 import Group, Verdict

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
GROUPS, STEPS = 16, 12
SEEN = (0, 5, STEPS - 2)


def difference(model, group):
    """Largest |log-probability in the log - that of transformers| over a group's samples."""
    prompt, worst = np.frombuffer(group.prompt_ids, "<i4"), 0.0
    for sample in group.samples:
        tokens = np.frombuffer(sample.token_ids, "<i4")
        ids = torch.tensor(np.concatenate([prompt, tokens]), dtype=torch.long)[None]
        with torch.no_grad():
            computed = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], -1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        worst = max(worst, float((computed - torch.tensor(np.frombuffer(sample.logprobs, "<f4").copy())).abs().max()))
    return worst


async def test_adapters_are_trained_served_and_exported(tmp_path):
    example = make_example(tmp_path / "example")
    spec = smoke_spec(
        example,
        rollout={"engine": "sglang"},
        schedule={"groups_per_step": GROUPS, "steps": STEPS},
        checkpoint={"every": 1},
        evaluation={"every": 6},
        trainer={"learning_rate": 0.02, "lora": {"rank": 4, "alpha": 8.0}},
    )
    variables = sglang_lab.variables("--lora-backend", "torch_native") | {"GRADBUS_SGLANG_START_SECONDS": "1200"}
    async with Stack(StackConfig(state=tmp_path / "state", port=0, environment_overrides={"rollout-0": variables})) as stack:
        outcome = await train(stack, spec, seconds=1500.0)
        assert outcome.state == "succeeded"
        with Client(stack.url, stack.api_key) as client:
            versions = document(await asyncio.to_thread(client.versions_page, outcome.run_id))["data"]
            for step in SEEN:
                await asyncio.to_thread(client.export, outcome.run_id, tmp_path / f"version-{step}", step)
        ledger = read_ledger(stack.state.root, outcome.run_id)
    assert check(ledger, GROUPS, STEPS, 1, fixed_lag=True) == []
    whole = (example / "model" / "model.safetensors").stat().st_size
    assert all(version["bytes"] < whole / 4 for version in versions)
    for step in SEEN:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / f"version-{step}", dtype=torch.float32)
        groups = [group for group in sampled(ledger) if versions_of(group) == {step}]
        assert len(groups) >= GROUPS
        assert max(difference(model, group) for group in groups) < 1e-5


def sampled(ledger):
    """All groups in the log."""
    return [Group.FromString(entry.group) for entry in ledger.entries.values() if entry.verdict != Verdict.VERDICT_DROPPED]


def versions_of(group):
    return {span.version for sample in group.samples for span in sample.spans}
