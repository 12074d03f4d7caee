"""SGLang samples and DeepSpeed trains, in one run on two ranks. All runs share one stack and one server."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import sglang_lab
from ledger import check, read_ledger
from run_lab import easier, events, learned, off, rewards
from smoke import make_example, smoke_spec, train
from test_deepspeed_run import TWO_RANKS

from gradbus.embedded import Stack, StackConfig
from gradbus_rollout.engines.sglang import SGLangConfig
from gradbus_rollout.engines.sglang.server import Server

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="module")]
GROUPS, STEPS, SHORT = 16, 40, 10
BOTH = {"engine": "sglang", "backend": "deepspeed"}


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return make_example(tmp_path_factory.mktemp("example"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory, example):
    """Its trainer is two ranks, its rollout attaches to the server that these tests share."""
    folder = tmp_path_factory.mktemp("stack")
    server = Server(example / "model", SGLangConfig(slots=64), sglang_lab.settings(), folder / "server.log")
    await server.start()
    attach = {"GRADBUS_SGLANG_URL": server.api.url, "GRADBUS_SGLANG_KEY": sglang_lab.KEY}
    overrides = {
        "command_overrides": {"trainer-0": TWO_RANKS},
        "environment_overrides": {"rollout-0": attach, "trainer-0": {"GRADBUS_FOLDER_DELTAS": "true"}},
    }
    try:
        async with Stack(StackConfig(state=folder / "state", port=0, ready_seconds=300.0, **overrides)) as stack:
            yield stack
    finally:
        await server.close()


def spec_of(example, engine, backend, steps=SHORT, stage=2, **changes):
    """Short runs learn at 1e-4, so that a step changes a part of the weights in bf16, as with large models; long ones at 3e-3."""
    long = steps == STEPS
    sections = {
        "rollout": {"engine": engine, "slots": 64, "group_size": 8 if long else 4},
        "trainer": {"backend": backend, "learning_rate": 3e-3 if long else 1e-4},
        "schedule": {"groups_per_step": GROUPS, "steps": steps},
        "checkpoint": {"every": 1, "keep": 100},
        "evaluation": {"every": steps},
    }
    if backend == "deepspeed":
        sections["trainer"]["deepspeed"] = {"zero_stage": stage}
    return smoke_spec(example, **sections | changes)


async def proven(stack, example, spec, outcome):
    """The versions whose samples were compared with transformers; everything else that a run must keep is checked on the way."""
    steps = spec["schedule"]["steps"]
    assert (outcome.state, outcome.steps) == ("succeeded", steps)
    ledger = read_ledger(stack.state.root, outcome.run_id)
    assert check(ledger, GROUPS, steps, 1, fixed_lag=True) == []
    assert {manifest.fingerprint["ranks"] for manifest in ledger.checkpoints} == {"2"}
    worst, versions = off(stack.state.root, example / "model", ledger)
    print(f"{outcome.run_id}: at most {worst:.1e} from transformers at versions {versions}")
    assert worst < 1e-5
    assert off(stack.state.root, example / "model", ledger, shift=1)[0] > 1e-4, "the comparison would not see another version's weights"
    return versions


async def test_both_reach_the_embedded_engines_and_plain_torchs_reward(stack, example):
    async with overridden(stack, "trainer-0", command=[]):
        spec = easier(spec_of(example, "torch", "torch", steps=STEPS))
        expected = learned(await rewards(stack, (await train(stack, spec, seconds=900)).run_id))
    spec = easier(spec_of(example, **BOTH, stage=3, steps=STEPS))
    outcome = await train(stack, spec, seconds=900)
    reached = learned(await rewards(stack, outcome.run_id))
    assert await proven(stack, example, spec, outcome) == list(range(STEPS - 1))
    print(f"mean reward of the last ten steps: {reached}, of the embedded engine's run {expected}")
    assert reached > 0.75 * expected


@asynccontextmanager
async def overridden(stack, name, command=None, **variables):
    """A process runs otherwise inside the block, and as before after it."""
    commands, environments = stack.config.command_overrides, stack.config.environment_overrides
    before = commands.get(name, []), environments.get(name, {})
    set_overrides(stack, name, before[0] if command is None else command, before[1] | variables)
    await again(stack, name)
    try:
        yield stack.processes[name]
    finally:
        set_overrides(stack, name, *before)
        await again(stack, name)


def set_overrides(stack, name, command, variables):
    stack.config.environment_overrides[name] = variables
    stack.config.command_overrides.pop(name, None)
    if command:
        stack.config.command_overrides[name] = command


async def again(stack, name):
    await stack.kill(name)
    await stack.until_ready([name], 300.0)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("transport", ["store", "delta", "broadcast"])
async def test_versions_arrive_by_every_transport(stack, example, transport, dtype, stage):
    # Files stay of versions that a checkpoint names, or its deltas do; a checkpoint's version is stored whole.
    every = {"every": 5 if transport == "delta" else 1, "keep": 100}
    spec = spec_of(example, **BOTH, stage=stage, weights={"transport": transport, "dtype": dtype}, checkpoint=every)
    outcome = await train(stack, spec, seconds=600)
    missing = set(range(SHORT - 1)) - set(await proven(stack, example, spec, outcome))
    # A step in which nobody was rewarded changes nothing, and no delta starts from the version before it.
    assert len(missing) <= (2 if transport == "delta" else 0), missing
    assert not await events(stack, outcome.run_id, "unchanged")


# A gather takes 26 tensors: the seventh version's is cut off in the middle, two steps behind a checkpoint.
POINTS = {"trainer-0": "mid-gather-1:170", "weight_store": "between-version-and-head:7", "rollout-0": "mid-load:5"}


@pytest.mark.parametrize("name", POINTS)
async def test_a_death_in_a_sync_loses_and_doubles_nothing(stack, example, tmp_path, name):
    """The rollout dies with the weights overwritten in a server that lives on."""
    # The ranks' deadline is longer than the run may take: it ends in time only if nobody waits for a rank that is dead.
    fault = {"GRADBUS_CRASH_POINT": POINTS[name], "GRADBUS_CRASH_DIR": str(tmp_path), "GRADBUS_COLLECTIVE_SECONDS": "900"}
    async with overridden(stack, name, **fault) as process:
        restarts = process.restarts
        await goes_on(stack, example)
        assert {marker.name for marker in tmp_path.iterdir()} == {POINTS[name].replace(":", "-")}
        assert process.restarts == restarts + 1


async def test_a_server_killed_in_a_load_is_started_anew_and_nothing_is_lost_or_doubled(stack, example, tmp_path):
    planted = [sys.executable, str(Path(__file__).with_name("planted_worker.py"))]
    launched = sglang_lab.variables() | {"GRADBUS_SGLANG_URL": "", "GRADBUS_SGLANG_KEY": "", "GRADBUS_CRASH_DIR": str(tmp_path)}
    async with overridden(stack, "rollout-0", planted, **launched) as process:
        restarts = process.restarts
        await goes_on(stack, example)
        assert [marker.name for marker in tmp_path.iterdir()] == ["server-killed"]
        assert process.restarts == restarts, "the worker lives on and starts another server"


async def goes_on(stack, example):
    """A run through whatever was planted, to the same versions as ever."""
    spec = spec_of(example, **BOTH, stage=3, checkpoint={"every": 2, "keep": 100})
    outcome = await train(stack, spec, seconds=800)
    assert await proven(stack, example, spec, outcome) == list(range(1, SHORT - 1))
    assert not await events(stack, outcome.run_id, "diverged")
