"""The copying task through the whole stack with a real SGLang server, beside the same run with the embedded engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
import sglang_lab
from ledger import check, read_ledger
from smoke import make_example, smoke_spec, train
from versions import worst_difference

from gradbus.client import Client
from gradbus.embedded import Stack, StackConfig

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]
GROUPS, STEPS = 16, 60


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("example"))


@pytest.fixture
def stack(tmp_path):
    return Stack(StackConfig(state=tmp_path / "state", port=0, environment_overrides={"rollout-0": sglang_lab.variables()}))


def spec_of(example, engine, steps):
    rollout = {"engine": engine, "slots": 64, "group_size": 4}
    schedule = {"groups_per_step": GROUPS, "steps": steps}
    return smoke_spec(example, rollout=rollout, schedule=schedule, checkpoint={"every": 1}, evaluation={"every": 30})


def off(stack, example, ledger):
    """The largest difference between log-probabilities in the log and those of transformers, over versions all along the run."""
    ledger.order = ledger.order[:: len(ledger.order) // 150 + 1]
    return worst_difference(stack.state.root, example / "model", ledger, most_samples=300)


async def rewards(stack, run_id):
    """Mean reward of each step."""
    with Client(stack.url, stack.api_key) as client:
        events = (await asyncio.to_thread(client.events, run_id, limit=1000))["data"]
    return [event["data"]["reward"] for event in events if event["type"] == "metrics"]


def servers(log):
    """Process groups of the servers that a worker has brought up, oldest first."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line["pid"] for line in lines if line["event"] == "engine_server_up"]


def versions_published(stack):
    """Checkpoints of its one run."""
    return len(list(stack.state.objects.glob("runs/*/checkpoints/*")))


async def test_a_run_reaches_the_embedded_engines_reward_with_log_probabilities_of_each_version(stack, example):
    async with stack:
        found = {}
        for engine in ("torch", "sglang"):
            outcome = await train(stack, spec_of(example, engine, STEPS), seconds=1500)
            assert (outcome.state, outcome.steps) == ("succeeded", STEPS)
            found[engine] = await rewards(stack, outcome.run_id)
        ledger = read_ledger(stack.state.root, outcome.run_id)
        assert check(ledger, GROUPS, STEPS, 1, fixed_lag=True) == []
        assert off(stack, example, ledger) < 1e-5
    last = {engine: sum(values[-10:]) / 10 for engine, values in found.items()}
    print(f"mean reward of the last ten steps: {last}")
    assert last["torch"] > 10 * sum(found["torch"][:5]) / 5, "the run is too short to show learning"
    assert last["sglang"] > 0.6 * last["torch"]


async def test_a_server_killed_in_a_run_is_started_again_and_nothing_is_lost(stack, example):
    async with stack:
        run = asyncio.create_task(train(stack, spec_of(example, "sglang", 20), seconds=1500))
        log = stack.state.logs / "rollout-0.log"
        async with asyncio.timeout(600):
            while not versions_published(stack) > 3 or not servers(log):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        (leader,) = servers(log)
        os.killpg(leader, signal.SIGKILL)
        outcome = await run
        assert (outcome.state, outcome.steps) == ("succeeded", 20)
        ledger = read_ledger(stack.state.root, outcome.run_id)
        assert check(ledger, GROUPS, 20, 1, fixed_lag=True) == []
        assert off(stack, example, ledger) < 1e-5
        assert len(servers(log)) == 2, "a new server took its place, once"
