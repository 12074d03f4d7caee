"""SGLang samples and DeepSpeed trains, in one run on two ranks. All runs share one stack and one server."""

from __future__ import annotations

import pytest
import pytest_asyncio
import sglang_lab
from ledger import check, read_ledger
from run_lab import events, off, rewards
from smoke import make_example, smoke_spec, train
from test_deepspeed_run import TWO_RANKS

from gradbus.embedded import Stack, StackConfig
from gradbus_rollout.sglang_engine import SGLangConfig
from gradbus_rollout.sglang_engine.server import Server

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="module")]
GROUPS, STEPS, SHORT = 16, 60, 10
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
    return smoke_spec(example, rollout={"engine": engine, "slots": 64}, trainer=trainer, schedule=schedule, **sections | changes)


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
    return versions


async def test_both_reach_the_embedded_engines_and_plain_torchs_reward(stack, example):
    found = {}
    for name, command, both in (("embedded", None, {"engine": "torch", "backend": "torch"}), ("both", TWO_RANKS, BOTH)):
        await trained_by(stack, command)
        spec = spec_of(example, steps=STEPS, stage=3, **both)
        outcome = await train(stack, spec, seconds=900)
        found[name] = await rewards(stack, outcome.run_id)
    assert await proven(stack, example, spec, outcome) == list(range(STEPS - 1))
    last = {name: sum(values[-10:]) / 10 for name, values in found.items()}
    print(f"mean reward of the last ten steps: {last}")
    assert last["embedded"] > 1.5 * sum(found["embedded"][:5]) / 5, "the run is too short to show learning"
    assert abs(last["both"] - last["embedded"]) < 0.1


async def trained_by(stack, command):
    """Starts the trainer anew by `command`, or as it is made for one rank."""
    stack.config.command_overrides.pop("trainer-0", None)
    if command:
        stack.config.command_overrides["trainer-0"] = command
    await stack.kill("trainer-0")
    await stack.until_ready(["trainer-0"], 300.0)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("transport", ["store", "delta", "collective"])
async def test_versions_arrive_by_every_transport(stack, example, transport, dtype, stage):
    spec = spec_of(example, **BOTH, stage=stage, weights={"transport": transport, "dtype": dtype})
    outcome = await train(stack, spec, seconds=600)
    versions = await proven(stack, example, spec, outcome)
    # Of the others no file is left, but of a delta's bases: a delta is stored for every version.
    assert versions == list(range(SHORT - 1)) if transport == "delta" else {0, 4, 5} <= set(versions), versions
    assert not await events(stack, outcome.run_id, "unchanged")
