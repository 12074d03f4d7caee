"""Many episodes at once: one that is stuck holds nobody, and nothing is left of them when they are over."""

import asyncio
import contextlib
import gc
import json
import random
import tempfile
import time

import psutil
import pytest

from gradbus.sandbox.budget import ProcessBudget
from gradbus.user_services.addresses import ENVIRONMENT, AddressPolicy
from gradbus.v1 import environment_service_pb2 as pb
from gradbus_environment import registry as registry_module
from gradbus_environment.contract import Move, Opening
from gradbus_environment.registry import Registry
from gradbus_environment.worlds.factory import Capacity, WorldSettings
from gradbus_environment.worlds.python import ChildSettings
from gradbus_environment.worlds.sandboxes import Sandboxes

OK, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_ERROR
TURNS = 4
SOURCE = '''
import time

class Environment:
    def reset(self, item, seed):
        self.total = 0

    def add(self, number: int, seconds: float = 0.0) -> int:
        """Adds, after a while."""
        time.sleep(seconds)
        self.total += number
        return self.total

    def reward(self, text):
        return float(self.total)
'''


async def played(world, name):
    """One whole episode."""
    await world.open(name)
    for turn in range(TURNS):
        answer = await world.step(turn, "", ("add", {"number": 1}))
        assert (answer.status, answer.messages[0].content) == (OK, str(turn + 1)), answer
    assert (await world.step(TURNS, "Done.")).reward == TURNS
    await world.close()


async def rate(worlds, name, seconds):
    """Episodes a second of all worlds together."""
    until, count = time.monotonic() + seconds, 0

    async def plays(n, world):
        nonlocal count
        while time.monotonic() < until:
            await played(world, f"{name}.{n}.{count}.{random.random()}")
            count += 1

    began = time.monotonic()
    await asyncio.gather(*(plays(n, world) for n, world in enumerate(worlds)))
    return count / (time.monotonic() - began)


@pytest.mark.parametrize(
    ("episodes", "rounds", "seconds", "share"), [(32, 3, 2.0, 0.25), pytest.param(256, 3, 8.0, 0.95, marks=pytest.mark.slow)]
)
async def test_one_stuck_tool_of_many_episodes_holds_nobody(episode, episodes, rounds, seconds, share):
    section = {"source": SOURCE, "step_seconds": 2 * seconds + 8.0}
    worlds = [episode(section, run_id=f"stuck of {episodes}") for _ in range(episodes)]
    await asyncio.gather(*(played(world, f"warm.{n}") for n, world in enumerate(worlds)))
    shares = []
    for attempt in range(rounds):
        alone = await rate(worlds[1:], f"alone.{attempt}", seconds)
        await worlds[0].open("stuck", attempt)
        stuck = asyncio.ensure_future(worlds[0].step(0, "", ("add", {"number": 1, "seconds": 600.0})))
        await asyncio.sleep(2.0)  # until it is known as one that takes long
        beside = await rate(worlds[1:], f"beside.{attempt}", seconds)
        assert not stuck.done()
        answer = await stuck
        assert (answer.status, "stopped after" in answer.reason, answer.HasField("reward")) == (ERROR, True, False)
        shares.append(beside / alone)
        if shares[-1] >= share:  # of a busy machine one round says little
            return
    raise AssertionError(shares)


@pytest.fixture
async def registry(monkeypatch, tmp_path):
    """A registry whose runs end at their last call."""
    monkeypatch.setattr(registry_module, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    policy = AddressPolicy((), True, ENVIRONMENT)
    settings = WorldSettings(policy, python=True, children=ChildSettings(2, allow_unisolated_network=True))
    made = Registry(settings, Capacity(ProcessBudget(8), ProcessBudget(1), Sandboxes(1)), 900.0)
    yield made
    await made.end()


def left():
    """Children, open files with sockets, and tasks of this process."""
    return len(children()), psutil.Process().num_fds(), len(asyncio.all_tasks())


def children():
    """Those that are alive; the loop of this process waits for the others."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child] if child.status() != psutil.STATUS_ZOMBIE else []
    return found


def turn_of(number, calls, *, is_last=False):
    return Move(number, {"text": "0", "calls": calls, "finish": "stop"}, is_last=is_last, end_reason="")


def add(seconds=0.0):
    arguments = json.dumps({"number": 1, "seconds": seconds})
    return [{"call_id": "c", "name": "add", "arguments": arguments, "status": "ok"}]


async def test_a_session_that_is_closed_while_its_tool_is_stuck_ends_with_its_child(registry):
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with registry.use("run", json.dumps({"source": SOURCE})) as run:
        names = [(await run.open(Opening("run", f"train.0.0.{n}", 0, "{}", 7), 30.0))[0] for n in range(4)]
        stuck = asyncio.ensure_future(run.step(names[0], turn_of(0, add(600.0)), 60.0))
        await asyncio.sleep(0.1)
        others = await asyncio.gather(*(run.step(name, turn_of(0, add()), 60.0) for name in names[1:]))
        assert ([one.status for one in others], stuck.done()) == (["ok"] * 3, False)
        await run.close(names[0])
        answer = await asyncio.wait_for(stuck, 20)
        assert (answer.status, "died (killed by SIGKILL)" in answer.reason) == ("error", True)
    await registry.end()
    gc.collect()
    assert faults == []


async def asked(registry, section, episode, calls):
    """One episode by the registry, whose failures are retried as a rollout worker retries them. Returns its attempts."""
    for attempt in range(20):
        async with registry.use("run", section) as run:
            name, answer = await run.open(Opening("run", episode, attempt, '{"most": 9}', 7), 30.0)
            for turn in range(3):
                if answer.status == "ok":
                    answer = await run.step(name, turn_of(turn, calls if turn < 2 else [], is_last=turn == 2), 30.0)
            await run.close(name)
        if answer.status == "ok":
            assert answer.reward is not None
            return attempt + 1
    raise AssertionError(answer)


async def ended(registry):
    """Closes the runs, and waits until the server has closed its ends of their connections."""
    assert await registry.close_idle()
    await asyncio.sleep(1.0)


@pytest.mark.parametrize("episodes", [80, pytest.param(2000, marks=pytest.mark.slow)])
async def test_nothing_is_left_of_episodes_whose_children_were_killed(registry, guessing_server, tmp_path, episodes):
    reveal = [{"call_id": "c", "name": "reveal", "arguments": "{}", "status": "ok"}]
    python, http = json.dumps({"source": SOURCE}), json.dumps({"service": guessing_server})
    await asyncio.gather(asked(registry, python, "warm", add()), asked(registry, http, "warm", reveal))
    await ended(registry)
    before, others, draws, places = left(), children(), random.Random(3), asyncio.Semaphore(32)
    attempts, killed = [], 0

    async def one(n):
        nonlocal killed
        async with places:
            mine = [child for child in children() if child not in others]
            if mine and draws.random() < 0.05:
                with contextlib.suppress(psutil.NoSuchProcess):
                    mine[0].kill()
                killed += 1
            by_http = n % 4 == 0
            attempts.append(await asked(registry, http if by_http else python, f"train.0.0.{n}", reveal if by_http else add()))

    await asyncio.gather(*map(one, range(episodes)))
    assert (len(attempts), killed > 0) == (episodes, True)
    await ended(registry)
    for _ in range(200):  # on a busy machine it takes a while
        if left() != before:
            await asyncio.sleep(0.1)
    assert left() == before
    assert list(tmp_path.iterdir()) == []
