"""Restart, stop, and the death of the supervisor."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradbus.client import find_gateway
from gradbus.embedded import Stack, StateFolder
from gradbus.errors import StackError

SUPERVISOR = Path(__file__).with_name("supervisor.py")


async def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.02)


def start_supervisor(state) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, str(SUPERVISOR), str(state)])


def pids(stack) -> dict[str, int]:
    return {name: process.pid for name, process in stack.processes.items()}


async def test_every_process_comes_back_after_sigkill(stack_config):
    async with Stack(stack_config(rollouts=2)) as stack:
        before = pids(stack)
        assert set(before) == {"nats", "buffer", "weight_store", "reward", "conductor", "gateway", "trainer-0", "rollout-0", "rollout-1"}
        await asyncio.gather(*(stack.kill(name) for name in before))
        await stack.until_ready(list(before), 60.0)
        after = pids(stack)
        assert all(after[name] != before[name] for name in before)
        assert {process.restarts for process in stack.processes.values()} == {1}


async def test_ports_and_key_survive_a_restart_of_the_stack(stack_config):
    async with Stack(stack_config()) as stack:
        url, key, ports = stack.url, stack.api_key, stack.state.read("ports.json")
    async with Stack(stack_config()) as stack:
        assert (stack.url, stack.api_key, stack.state.read("ports.json")) == (url, key, ports)
        assert stack.state.read("gateway.json") == {"url": url}


async def test_an_orderly_stop_drains_services_and_leaves_nothing_behind(stack_config, is_alive):
    async with Stack(stack_config()) as stack:
        running = pids(stack)
    assert not [name for name, pid in running.items() if is_alive(pid)]
    assert stack.state.owner() is None
    assert not (stack.state.root / "stack.json").exists()
    with pytest.raises(StackError, match="no stack runs"):
        find_gateway(stack.state.root)
    drained = {name for name in running if stack.state.log_tail(name).endswith("drained")}
    assert drained == running.keys() - {"nats", "buffer"}


async def test_what_a_killed_process_had_started_ends_with_it(stack_config, is_alive):
    forks = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True)"
    stand_in = [
        sys.executable,
        "-c",
        f"{forks}; sys.argv = ['x', 'reward']; exec(open({str(SUPERVISOR.with_name('stand_in.py'))!r}).read())",
    ]
    async with Stack(stack_config(command_overrides={"reward": stand_in})) as stack:
        grandchild = int(stack.state.log_tail("reward").split()[0])
        assert is_alive(grandchild)
        await stack.kill("reward")
        await until(lambda: not is_alive(grandchild))


async def test_stack_json_says_what_runs(stack_config):
    async with Stack(stack_config()) as stack:
        noted = stack.state.read("stack.json")
        assert (noted["pid"], noted["ready"], noted["url"]) == (os.getpid(), True, stack.url)
        assert {name: entry["pid"] for name, entry in noted["processes"].items()} == pids(stack)
        await stack.kill("reward")
        await until(lambda: stack.state.read("stack.json")["processes"]["reward"]["restarts"] == 1)


async def test_a_changed_override_takes_effect_at_the_next_start(stack_config):
    async with Stack(stack_config()) as stack:
        stack.config.environment_overrides["trainer-0"] = {"GRADBUS_CRASH_POINT": "mid-publish"}
        await stack.kill("trainer-0")
        await stack.until_ready(["trainer-0"], 60.0)
        note = json.loads((stack.state.cache / "trainer-0.json").read_text())
    assert note["environment"]["GRADBUS_CRASH_POINT"] == "mid-publish"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
async def test_children_die_with_a_killed_supervisor_and_the_next_stack_starts(stack_config, is_alive):
    config = stack_config()
    state = StateFolder(config.state)
    with start_supervisor(config.state) as supervisor:
        await until(lambda: state.read("stack.json").get("ready"))
        assert state.owner() == supervisor.pid
        noted = state.read("stack.json")
        supervisor.send_signal(signal.SIGKILL)
    running = [entry["pid"] for entry in noted["processes"].values()]
    await until(lambda: not any(is_alive(pid) for pid in running))
    async with Stack(config) as stack:
        assert stack.url == noted["url"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_stops_the_stack_in_order(stack_config, is_alive, number):
    config = stack_config()
    state = StateFolder(config.state)
    with start_supervisor(config.state) as supervisor:
        await until(lambda: state.read("stack.json").get("ready"))
        running = [entry["pid"] for entry in state.read("stack.json")["processes"].values()]
        supervisor.send_signal(number)
        assert await asyncio.to_thread(supervisor.wait, 60) == 0
    assert not any(is_alive(pid) for pid in running)
    assert state.log_tail("trainer-0").endswith("drained")


async def test_a_process_that_holds_more_memory_than_it_may_is_killed_and_started_anew(stack_config, tmp_path):
    once = "import os, sys; kept = not os.mkdir(sys.argv[1]) and bytearray(b'x' * 300_000_000) if not os.path.exists(sys.argv[1]) else 0"
    stand_in = f"sys.argv = ['x', 'rollout-0']; exec(open({str(SUPERVISOR.with_name('stand_in.py'))!r}).read())"
    greedy = [sys.executable, "-c", f"{once}; {stand_in}", str(tmp_path / "taken")]
    async with Stack(stack_config(command_overrides={"rollout-0": greedy}, memory={"rollout": 200_000_000})) as stack:
        await until(lambda: stack.processes["rollout-0"].restarts)
        await stack.until_ready(["rollout-0"], 60.0)
        ended = stack.state.read("stack.json")["processes"]["rollout-0"]["ended"]
        assert ended.startswith("killed: it held 0.")
        assert "may hold 0.20 GB; raise its limit with `gradbus up --memory`" in ended
        assert {name for name, process in stack.processes.items() if process.restarts} == {"rollout-0"}
