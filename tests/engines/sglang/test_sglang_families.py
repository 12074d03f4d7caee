"""Runs over models that the trainer computes by transformers, or with experts, and a real SGLang server samples."""

from __future__ import annotations

import pytest
import sglang_lab
from ledger import check, read_ledger
from run_lab import easier, of_family, off
from smoke import make_example, smoke_spec, train

from gradbus.embedded import Stack, StackConfig

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
GROUPS, STEPS = 4, 4
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True, "head_dim": 16}
FAMILIES = {"stablelm": {}, "starcoder2": {}, "qwen3_moe": EXPERTS}


@pytest.fixture(params=FAMILIES)
def example(request, tmp_path):
    return of_family(make_example(tmp_path / "example"), request.param, **FAMILIES[request.param])


async def test_a_run_samples_each_version_with_transformers_log_probabilities(example, tmp_path):
    stack = Stack(StackConfig(state=tmp_path / "state", port=0, environment_overrides={"rollout-0": sglang_lab.variables()}))
    schedule = {"groups_per_step": GROUPS, "steps": STEPS}
    spec = easier(smoke_spec(example, rollout={"engine": "sglang", "group_size": 4}, schedule=schedule, checkpoint={"every": 1}))
    async with stack:
        outcome = await train(stack, spec, seconds=900)
        assert (outcome.state, outcome.steps) == ("succeeded", STEPS)
        ledger = read_ledger(stack.state.root, outcome.run_id)
        assert check(ledger, GROUPS, STEPS, 1, fixed_lag=True) == []
        worst, versions = off(stack.state.root, example / "model", ledger)
        assert worst < 1e-5
        assert versions == list(range(STEPS - 1))
