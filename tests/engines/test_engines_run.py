"""SGLang samples and DeepSpeed trains, in one run on two ranks. All runs share one stack and one server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import pytest_asyncio
import sglang_lab
from ledger import check, read_ledger
from run_lab import easier, events, learned, off, rewards
from smoke import make_example, smoke_spec, train
from test_deepspeed_run import TWO_RANKS

from gradbus.embedded import Stack, StackConfig
from gradbus_rollout.sglang_engine import SGLangConfig
from gradbus_rollout.sglang_engine.server import Server

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
    overrides = {"command_overrides": {"trainer-0": TWO_RANKS}, "environment_overrides": {"rollout-0": attach}}
    try:
        async with Stack(StackConfig(state=folder / "state", port=0, ready_seconds=300.0, **overrides)) as stack:
            yield stack
    finally:
        await server.close()


def spec_of(example, engine, backend, steps=SHORT, stage=2, **changes):
    """A rate of 1e-4 lets a step change a part of the weights in bf16, as rates of large models do."""
    trainer = {"backend": backend} | ({"deepspeed": {"zero_stage": stage}} if backend == "deepspeed" else {})
    trainer |= {"learning_rate": 3e-3 if steps == STEPS else 1e-4}
    schedule = {"groups_per_step": GROUPS, "steps": steps}
    sections = {"checkpoint": {"every": 1 if steps == STEPS else 5, "keep": 1000}, "evaluation": {"every": steps}}
    return smoke_spec(
        example,
        rollout={"engine": engine, "slots": 64, "group_size": 8 if steps == STEPS else 4},
        trainer=trainer,
        schedule=schedule,
        **sections | changes,
    )


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
    found = {}
    for name, command, both in (("embedded", None, {"engine": "torch", "backend": "torch"}), ("both", TWO_RANKS, BOTH)):
        await trained_by(stack, command)
        spec = easier(spec_of(example, steps=STEPS, stage=3, **both))
        outcome = await train(stack, spec, seconds=900)
        found[name] = learned(await rewards(stack, outcome.run_id))
    assert await proven(stack, example, spec, outcome) == list(range(STEPS - 1))
    print(f"mean reward of the last ten steps: {found}")
    assert abs(found["both"] - found["embedded"]) < 0.25 * found["embedded"]


async def trained_by(stack, command):
    """Starts the trainer anew by `command`, or as it is made for one rank."""
    stack.config.command_overrides.pop("trainer-0", None)
    if command:
        stack.config.command_overrides["trainer-0"] = command
    await again(stack, "trainer-0")


async def again(stack, name):
    """Starts a process anew, with what the stack's overrides now say."""
    await stack.kill(name)
    await stack.until_ready([name], 300.0)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("transport", ["store", "delta", "collective"])
async def test_versions_arrive_by_every_transport(stack, example, transport, dtype, stage):
    # Files stay of versions that a checkpoint names, or its deltas do; a checkpoint's version is stored whole.
    every = {"every": 5 if transport == "delta" else 1, "keep": 1000}
    spec = spec_of(example, **BOTH, stage=stage, weights={"transport": transport, "dtype": dtype}, checkpoint=every)
    outcome = await train(stack, spec, seconds=600)
    assert await proven(stack, example, spec, outcome) == list(range(SHORT - 1))
    assert not await events(stack, outcome.run_id, "unchanged")


# A gather takes 26 tensors: the seventh version's is cut off in the middle, behind the checkpoint of step 5.
POINTS = {"trainer-0": "mid-gather-1:170", "weight_store": "between-version-and-head:7", "rollout-0": "mid-load:5"}


@pytest.mark.parametrize("name", POINTS)
async def test_a_death_in_a_sync_loses_and_doubles_nothing(stack, example, tmp_path, name):
    """The rollout dies with the weights overwritten in a server that lives on."""
    before = stack.config.environment_overrides.get(name, {})
    # Longer than the run may take: it ends in time only if no rank waits for one that is dead.
    fault = {"GRADBUS_FAULT_POINT": POINTS[name], "GRADBUS_FAULT_DIR": str(tmp_path), "GRADBUS_COLLECTIVE_SECONDS": "900"}
    stack.config.environment_overrides[name] = before | fault
    await again(stack, name)
    restarts = stack.processes[name].restarts
    spec = spec_of(example, **BOTH, stage=3)
    outcome = await train(stack, spec, seconds=600)
    assert {marker.name for marker in tmp_path.iterdir()} == {POINTS[name].replace(":", "-")}
    assert stack.processes[name].restarts == restarts + 1
    assert len(await proven(stack, example, spec, outcome)) > 2
    assert not await events(stack, outcome.run_id, "diverged")
    stack.config.environment_overrides[name] = before
    await again(stack, name)


async def test_a_server_killed_in_a_load_is_started_anew_and_nothing_is_lost_or_doubled(stack, example, tmp_path):
    attached = stack.config.environment_overrides["rollout-0"]
    stack.config.environment_overrides["rollout-0"] = sglang_lab.variables() | {"GRADBUS_FAULT_DIR": str(tmp_path)}
    stack.config.command_overrides["rollout-0"] = [sys.executable, str(Path(__file__).with_name("planted_worker.py"))]
    await again(stack, "rollout-0")
    restarts = stack.processes["rollout-0"].restarts
    spec = spec_of(example, **BOTH, stage=3)
    outcome = await train(stack, spec, seconds=900)
    assert [marker.name for marker in tmp_path.iterdir()] == ["server-killed"]
    assert stack.processes["rollout-0"].restarts == restarts, "the worker lives on and starts another server"
    assert len(await proven(stack, example, spec, outcome)) > 2
    del stack.config.command_overrides["rollout-0"]
    stack.config.environment_overrides["rollout-0"] = attached
    await again(stack, "rollout-0")
