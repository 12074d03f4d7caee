"""Runs that attack whoever loads their model: each ends by itself, its workers serve the next run, and nothing of it is left."""

import asyncio
import sys
from pathlib import Path

import pytest
from smoke import EXAMPLE, FINAL, smoke_spec, train, until

from gradbus.client import Client
from gradbus.process.usage import tree_usage

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]
HOSTILE = str(Path(__file__).with_name("hostile.py"))
SECONDS = 300.0


def attacked(name, module, **settings):
    """Overrides of a stack whose worker `name` is attacked."""
    return {
        "command_overrides": {name: [sys.executable, HOSTILE, module]},
        "environment_overrides": {name: {f"GRADBUS_{variable.upper()}": value for variable, value in settings.items()}},
    }


async def end_of(client, spec, name, cancel_at=None):
    """The end of a run of that name, which is cancelled once the file `cancel_at` exists."""
    run_id = (await asyncio.to_thread(client.submit, spec | {"name": name}, EXAMPLE)).id
    if cancel_at is not None:
        async with asyncio.timeout(SECONDS):
            while not cancel_at.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.1)
        await asyncio.to_thread(client.cancel, run_id)
    return await until(client, run_id, lambda run: run["state"] in FINAL, SECONDS)


@pytest.fixture(scope="session")
def short(example):
    return smoke_spec(example, schedule={"steps": 4}, checkpoint={"every": 4}, evaluation={"every": 4})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "module"), [("trainer-0", "gradbus_trainer"), ("rollout-0", "gradbus_rollout")])
async def test_every_attack_ends_its_run_alone(stack_of, short, name, module):
    overrides = attacked(name, module, frozen_seconds="3", memory_limit="1GiB")
    async with stack_of(1, **overrides) as stack:
        client, worker = Client(stack.url, stack.api_key), stack.processes[name]
        assert (await train(stack, short)).state == "succeeded"
        assert (await train(stack, short)).state == "succeeded"
        assert worker.restarts == 0, "runs that behave restart nobody"
        before = tree_usage(worker.pid).held_bytes

        divided = await end_of(client, short, "divides")
        assert divided["state"] == "failed"
        assert f"{name} failed 3 times in the same way: ZeroDivisionError" in divided["reason"]

        grown = await end_of(client, short, "grows")
        assert grown["state"] == "failed"
        assert "memory" in grown["reason"]

        died = await end_of(client, short, "dies")
        assert died["state"] == "failed"
        assert f"the last was {name}" in died["reason"]

        frozen = await end_of(client, short, "freezes")
        assert (frozen["state"], f"the last was {name}" in frozen["reason"]) == ("failed", True)

        attacked_pid = worker.pid
        spun = await end_of(client, short, "spins", cancel_at=stack.state.cache / "spins")
        assert spun["state"] == "cancelled"
        async with asyncio.timeout(SECONDS):
            while worker.pid in {None, attacked_pid}:  # noqa: ASYNC110 - a process has no condition
                await asyncio.sleep(0.1)

        leaking_pid = worker.pid
        assert (await end_of(client, short, "leaks"))["state"] == "failed"
        async with asyncio.timeout(SECONDS):
            while worker.pid in {None, leaking_pid}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

        assert (await train(stack, short)).state == "succeeded"
        async with asyncio.timeout(SECONDS):
            while abs(tree_usage(worker.pid).held_bytes - before) > 100_000_000:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        client.close()


@pytest.mark.slow
async def test_a_step_that_kills_every_trainer_ends_its_run(stack_of, short):
    async with stack_of(1, **attacked("trainer-0", "gradbus_trainer")) as stack:
        client = Client(stack.url, stack.api_key)
        ended = await end_of(client, short, "stumbles")
        assert ended["state"] == "failed"
        assert "8 trainer processes in a row ended after version 1 and made no other, the last was trainer-0" in ended["reason"]
        client.close()
