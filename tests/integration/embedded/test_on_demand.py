"""The reference service runs while a run with a KL penalty is live, the environment service while one with an environment is."""

import asyncio
import time

import pytest

from gradbus.bus import Bus, BusSettings
from gradbus.control.runs import RunRecord, RunStatus
from gradbus.embedded import Stack
from gradbus.spec import RunSpec

SPEC = {
    "name": "run",
    "model": {"path": "/model"},
    "data": {"train": "train.jsonl", "eval": "eval.jsonl", "prompt": "prompt"},
    "reward": {"grader": {"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}},
    "schedule": {"steps": 10},
}
NEEDS = {
    "reference": {"algorithm": {"kl": 0.1}},
    "environment": {"environment": {"service": "http://127.0.0.1:1/world"}},
    "agent": {"environment": {"agent": "pull"}},
}


async def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.02)


async def connect(stack, role):
    port = stack.state.read("ports.json")["nats"]
    password = (stack.state.secrets / role / "gradbus_nats_password").read_text()
    return await Bus.connect(BusSettings(f"nats://127.0.0.1:{port}", role, password), role)


@pytest.mark.parametrize("name", NEEDS)
async def test_a_service_comes_and_goes_with_the_runs_that_need_it(stack_config, name):
    async with Stack(stack_config()) as stack:
        gateway, conductor = await connect(stack, "gateway"), await connect(stack, "conductor")
        runs = await gateway.bucket("runs")
        record = RunRecord(run_id="run-1", spec=RunSpec.model_validate(SPEC | NEEDS[name]), created_unix_ns=1)
        await runs.put("run-1.spec", record.to_bytes())
        await until(lambda: name in stack.processes)
        await stack.until_ready([name], 60.0)
        await stack.kill("nats")
        await stack.until_ready(["nats"], 60.0)
        assert stack.processes[name].restarts == 0
        await (await conductor.bucket("runs")).put("run-1.status", RunStatus(state="succeeded").to_bytes())
        await until(lambda: name not in stack.processes)
        assert stack.state.log_tail(name).endswith("drained")
        await gateway.close()
        await conductor.close()
