"""The copying task through the whole stack with a real SGLang server, beside the same run with the embedded engine."""

from __future__ import annotations

import asyncio

import pytest
import sglang_lab
from ledger import check, read_ledger
from run_lab import easier, kill_server, learned, off, rewards, servers
from smoke import make_example, smoke_spec, train

from gradbus.embedded import Stack, StackConfig

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]
GROUPS, STEPS = 16, 40


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("example"))


@pytest.fixture
def stack(tmp_path):
    return Stack(StackConfig(state=tmp_path / "state", port=0, environment_overrides={"rollout-0": sglang_lab.variables()}))


def spec_of(example, engine, steps):
    rollout = {"engine": engine, "slots": 64, "group_size": 8}
    schedule = {"groups_per_step": GROUPS, "steps": steps}
    return easier(smoke_spec(example, rollout=rollout, schedule=schedule, checkpoint={"every": 1}))


async def test_a_run_reaches_the_embedded_engines_reward_with_log_probabilities_of_each_version(stack, example):
    async with stack:
        found = {}
        for engine in ("torch", "sglang"):
            outcome = await train(stack, spec_of(example, engine, STEPS), seconds=1500)
            assert (outcome.state, outcome.steps) == ("succeeded", STEPS)
            found[engine] = learned(await rewards(stack, outcome.run_id))
        ledger = read_ledger(stack.state.root, outcome.run_id)
        assert check(ledger, GROUPS, STEPS, 1, fixed_lag=True) == []
        worst, versions = off(stack.state.root, example / "model", ledger)
        assert worst < 1e-5
        assert versions == list(range(STEPS - 1))
    print(f"mean reward of the last ten steps: {found}")
    assert found["sglang"] > 0.75 * found["torch"]


async def test_a_server_killed_in_a_run_is_started_again_and_nothing_is_lost(stack, example):
    async with stack:
        run = asyncio.create_task(train(stack, spec_of(example, "sglang", 20), seconds=1500))
        await kill_server(stack)
        outcome = await run
        assert (outcome.state, outcome.steps) == ("succeeded", 20)
        ledger = read_ledger(stack.state.root, outcome.run_id)
        assert check(ledger, GROUPS, 20, 1, fixed_lag=True) == []
        worst, _ = off(stack.state.root, example / "model", ledger)
        assert worst < 1e-5
        assert len(servers(stack)) == 2, "a new server took its place, once"
