"""Memory limits of a stack's processes."""

import asyncio
import subprocess
import sys

import pytest

from gradbus.embedded import StackConfig
from gradbus.embedded.memory import SHARES, default_limit, parse_limits, watch_memory
from gradbus.errors import StackError
from gradbus.process.usage import tree_usage

HOLDER = "import subprocess, sys; kept = bytearray(b'x' * int(sys.argv[1])); print('held', flush=True); {}; sys.stdin.read()"
ALONE = HOLDER.format("0")
FAMILY = HOLDER.format("subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]])")
MB = 10**6


@pytest.fixture
def holder():
    started = []

    def start(size, script=ALONE):
        command = [sys.executable, "-c", script, str(size), ALONE]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_limits_are_read_by_role():
    assert parse_limits(["trainer=8GiB", "rollout=500mb"]) == {"trainer": 8 << 30, "rollout": 500 * MB}


@pytest.mark.parametrize("wrong", ["trainer", "trainer=", "trainer=much", "trainer=0", "trainer=-1", "nats=1GiB", "=1GiB"])
def test_what_is_no_limit_is_refused(wrong):
    with pytest.raises(StackError, match="write ROLE=SIZE"):
        parse_limits([wrong])


def test_a_role_has_its_share_of_the_machine_and_its_processes_divide_it():
    assert all(default_limit(role, 1) >= 1 << 30 for role in SHARES)
    assert StackConfig(rollouts=1000).memory_limit("rollout") == 2 << 30
    assert StackConfig(memory={"rollout": 7}).memory_limit("rollout") == 7


def test_what_a_process_and_its_children_hold_is_counted_together(holder):
    process = holder(50 * MB, FAMILY)
    assert process.stdout.readline() == "held\n", "the child holds as much"
    assert 100 * MB < tree_usage(process.pid).held_bytes < 160 * MB


def test_a_process_that_has_ended_takes_nothing(holder):
    process = holder(MB)
    process.kill()
    process.wait()
    assert tree_usage(process.pid) is None


async def test_the_watch_names_the_process_that_exceeds_its_limit(holder):
    modest, greedy = holder(MB).pid, holder(200 * MB).pid
    found = asyncio.Queue()
    watching = asyncio.create_task(watch_memory(lambda: dict.fromkeys((modest, greedy), 100 * MB), lambda *seen: found.put_nowait(seen)))
    pid, held = await asyncio.wait_for(found.get(), 60)
    watching.cancel()
    assert pid == greedy
    assert 200 * MB < held < 260 * MB
