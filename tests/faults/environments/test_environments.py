"""A run with an environment: whoever dies at a point of an episode, weights, episodes and rewards are those of an undisturbed run."""

import asyncio
import importlib.util
import random
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ledger import check, read_ledger
from smoke import train

from gradbus.embedded import Stack, StackConfig
from gradbus.v1.episode_pb2 import END_REASON_FAILED
from gradbus.v1.group_pb2 import Group

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "ledger"
PLANTED = str(Path(__file__).parents[1] / "planted.py")
POINTS = ("after-opened", "mid-draw", "after-drawn", "after-answered", "before-put", "after-put")
"""Of a rollout worker: a session is there; other turns are being drawn; a call has no result yet; a result is not kept yet; a group is
whole and not in the buffer; it is there and nobody knows."""
VICTIMS = ("rollout-0", "environment", "conductor", "buffer", "nats", "reward", "trainer-0")
EACH_POINT = ("environment", "rollout-0", "environment", "conductor", "buffer", "trainer-0")
"""The victims at `POINTS` in the short test."""
SHORT, LONG = 12, 40
GROUPS, SIZE = 8, 4


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Model and data of the ledger."""
    spec = importlib.util.spec_from_file_location("make_ledger", EXAMPLE / "make_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.make(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="session")
def looking_up(pages):
    """Makes a short run of the example, with a scorer beside the environment."""
    scorer = "def grade(sample, item):\n    return 0.01 * len(sample['output_text'])\n"

    def make(steps):
        return {
            "name": "ledger",
            "model": {"path": str(pages / "model")},
            "data": {"train": str(pages / "train.jsonl"), "eval": str(pages / "eval.jsonl")},
            "environment": {"source": (EXAMPLE / "environment.py").read_text(), "max_turns": 3},
            "reward": {"grader": {"type": "python", "source": scorer}},
            "rollout": {"slots": 16, "group_size": SIZE, "max_new_tokens": 2, "stop_token_ids": list(range(3, 23))},
            "schedule": {"groups_per_step": GROUPS, "steps": steps},
            "checkpoint": {"every": 4, "keep": 100},
            "evaluation": {"every": steps, "samples": 16, "metric": "exact"},
        }

    return make


class Calm:
    """The undisturbed runs by their number of steps, each made once."""

    def __init__(self, folder, spec_of):
        self.folder, self.spec_of, self.known = folder, spec_of, {}

    async def of(self, steps):
        """Digest and episodes."""
        if steps not in self.known:
            async with Stack(StackConfig(state=self.folder / str(steps), port=0)) as stack:
                self.known[steps] = await played(stack, self.spec_of(steps))
        return self.known[steps]


@pytest.fixture(scope="session")
def calm(tmp_path_factory, looking_up):
    return Calm(tmp_path_factory.mktemp("calm"), looking_up)


def holds_of(victims, seed):
    """A death at each point, when an episode or a group of the first dozens is there."""
    draw, turns = random.Random(seed), {"before-put": (2, 6), "after-put": (2, 6)}
    return [f"{point}:{draw.randint(*turns.get(point, (20, 60)))}:{victim}" for point, victim in zip(POINTS, victims, strict=True)]


async def kill_as_asked(stack, folder):
    """Kills whom the held workers name, until it is cancelled."""
    done = set()
    while True:
        for asked in sorted(folder.iterdir()):
            if asked.suffix != ".done" and asked.name not in done:
                done.add(asked.name)
                await stack.kill(asked.name.rpartition(":")[2])
                asked.with_suffix(".done").touch()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def held_stack(make, folder, holds, rollouts=1):
    """A stack whose first rollout stands still at the points; in the end everybody has died there."""
    folder.mkdir()
    variables = {"GRADBUS_HOLDS": ",".join(holds), "GRADBUS_HOLDS_DIR": str(folder)}
    command = [sys.executable, PLANTED, "holds", "gradbus_rollout"]
    async with make(rollouts, command_overrides={"rollout-0": command}, environment_overrides={"rollout-0": variables}) as stack:
        killing = asyncio.create_task(kill_as_asked(stack, folder))
        try:
            yield stack
        finally:
            killing.cancel()
    assert {asked.name for asked in folder.iterdir() if asked.suffix != ".done"} == set(holds), "not every point was reached"


async def played(stack, spec):
    """The final digest and, by index, all that happened: tokens, log-probabilities, turns, rewards. An attempt more is no difference."""
    outcome = await train(stack, spec, seconds=900.0)
    assert outcome.state == "succeeded"
    found, ledger = {}, read_ledger(stack.state.root, outcome.run_id)
    assert check(ledger, GROUPS, spec["schedule"]["steps"], max_staleness=1, fixed_lag=True) == []
    for index, entry in ledger.entries.items():
        group = Group.FromString(entry.group)
        for sample in group.samples:
            assert sample.episode.end_reason != END_REASON_FAILED
            sample.episode.attempt = 0
        found[index] = entry.verdict, [sample.SerializeToString(deterministic=True) for sample in group.samples], list(entry.rewards)
    return outcome.digest, found


async def test_a_death_at_each_point_of_an_episode_changes_neither_weights_nor_episodes(stack_of, looking_up, calm, tmp_path):
    async with held_stack(stack_of, tmp_path / "holds", holds_of(EACH_POINT, 0)) as stack:
        assert await played(stack, looking_up(SHORT)) == await calm.of(SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("victim", VICTIMS)
async def test_whoever_dies_at_all_points_changes_neither_weights_nor_episodes(stack_of, looking_up, calm, tmp_path, victim, seed):
    async with held_stack(stack_of, tmp_path / "holds", holds_of((victim,) * len(POINTS), seed)) as stack:
        assert await played(stack, looking_up(LONG)) == await calm.of(LONG)


@asynccontextmanager
async def another_environment(stack, ports):
    """A second environment service beside the stack's own, and the process."""
    program = stack._programs.service("environment")
    places = {"GRADBUS_LISTEN": f"127.0.0.1:{ports[0]}", "GRADBUS_HEALTH": f"127.0.0.1:{ports[1]}"}
    process = await asyncio.create_subprocess_exec(*program.command, env={**program.environment, **places})
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("rollouts", [1, 2, 3])
async def test_no_number_of_rollouts_and_environment_services_changes_a_bit(stack_of, looking_up, calm, rollouts, free_port):
    ports = free_port(), free_port()
    async with stack_of(rollouts) as stack:
        assert await played(stack, looking_up(SHORT)) == await calm.of(SHORT)
        stack.config.environment_overrides["rollout-0"] = {"GRADBUS_ENVIRONMENT_ADDRESS": f"127.0.0.1:{ports[0]}"}
        await stack.kill("rollout-0")
        async with another_environment(stack, ports) as process:
            assert await played(stack, looking_up(SHORT)) == await calm.of(SHORT)
            assert process.returncode is None


@pytest.mark.slow
async def test_an_environment_service_that_dies_with_an_answer_changes_no_bit(stack_of, looking_up, calm, tmp_path):
    """It has computed what a call says, and nobody was told."""
    faults = {"environment": {"GRADBUS_CRASH_POINT": "step-done:30,200", "GRADBUS_CRASH_DIR": str(tmp_path)}}
    async with stack_of(1, environment_overrides=faults) as stack:
        assert await played(stack, looking_up(SHORT)) == await calm.of(SHORT)
    assert {marker.name for marker in tmp_path.glob("step-done-*")} == {"step-done-30", "step-done-200"}
