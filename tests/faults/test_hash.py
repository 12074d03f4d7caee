"""The hash test: any schedule of faults and worker counts ends in the same weights, bit for bit."""

import asyncio
import json
import subprocess
import sys

import pytest
import pytest_asyncio
from ledger import check, read_ledger
from smoke import train
from versions import worst_difference

from gradbus.embedded import Stack, StackConfig

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

# Two a run: what is killed in between finds the other one starting.
PAIRS = [("weight_store", "reward"), ("conductor", "gateway"), ("trainer-0", "nats"), ("rollout-0", "buffer")]
PROCESSES = [name for pair in PAIRS for name in pair]
MOST_POINTS = {
    "after-append": "conductor",
    "between-manifest-and-head": "weight_store",
    "mid-decode": "rollout-0",
    "mid-publish": "trainer-0",
}
ROUNDING = 0.05
"""Nats. A rollout in bfloat16 rounds activations and logits to 8 bits."""
OTHER_POINTS = {"between-version-and-head": "weight_store"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory):
    """A stack with two rollouts. Whatever a test killed has come back when its run ends."""
    async with Stack(StackConfig(state=tmp_path_factory.mktemp("pair"), port=0, rollouts=2)) as stack:
        yield stack


def faults_of(stack, outcome, spec):
    schedule = spec["schedule"]
    ledger = read_ledger(stack.state.root, outcome.run_id)
    fixed_lag = schedule["mode"] == "fixed_lag"
    return check(ledger, schedule["groups_per_step"], schedule["steps"], schedule["max_staleness"], fixed_lag=fixed_lag)


def replayed(stack, run_id):
    """The digest in which the run's archive ends when it is trained again."""
    command = [sys.executable, "-m", "gradbus.cli", "replay", run_id, "--json", "--state", str(stack.state.root)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["digest"]


@pytest.mark.slow  # the next one has two as well
@pytest.mark.parametrize("rollouts", [2, 3])
async def test_the_number_of_rollouts_changes_no_bit(stack_of, spec, true_digest, rollouts):
    async with stack_of(rollouts) as stack:
        outcome = await train(stack, spec)
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
        assert faults_of(stack, outcome, spec) == []


@pytest.mark.parametrize(
    ("groups", "times"),
    [pytest.param([PROCESSES[:4], PROCESSES[4:]], 1, id="once"), pytest.param(PAIRS, 2, id="twice", marks=pytest.mark.slow)],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_process_killed_at_random_changes_no_bit(pair, spec, true_digest, groups, times):
    for seed, group in enumerate(groups):
        kills = tuple(group) * times
        outcome = await train(pair, spec, kills, seed)
        assert tuple(outcome.killed) == kills, f"the run ended before {group} were killed"
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest), group
        assert faults_of(pair, outcome, spec) == [], group
    assert await asyncio.to_thread(replayed, pair, outcome.run_id) == true_digest


@pytest.mark.parametrize(
    ("points", "passes"),
    [
        pytest.param(MOST_POINTS, (2,), id="once"),
        pytest.param(MOST_POINTS, (2, 5), id="twice", marks=pytest.mark.slow),
        pytest.param(OTHER_POINTS, (2, 5), id="others", marks=pytest.mark.slow),
    ],
)
async def test_deaths_at_named_points_change_no_bit(stack_of, spec, true_digest, tmp_path, points, passes):
    faults = {}
    for point, name in points.items():
        (tmp_path / point).mkdir()
        faults[name] = {"GRADBUS_CRASH_POINT": f"{point}:{','.join(map(str, passes))}", "GRADBUS_CRASH_DIR": str(tmp_path / point)}
    async with stack_of(1, environment_overrides=faults) as stack:
        outcome = await train(stack, spec)
        for point, name in points.items():
            died = {marker.name for marker in (tmp_path / point).iterdir()}
            assert died == {f"{point}-{count}" for count in passes}, f"{name} did not die at each pass of {point}"
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
        assert faults_of(stack, outcome, spec) == []


@pytest.mark.slow  # the learners' own tests resume in bfloat16
@pytest.mark.asyncio(loop_scope="module")
async def test_kills_change_no_bit_of_a_run_in_bfloat16(pair, spec, example):
    spec = spec | {"trainer": spec["trainer"] | {"dtype": "bf16"}, "schedule": spec["schedule"] | {"steps": 30}}
    kills = ("trainer-0", "rollout-0")
    calm, outcome = await train(pair, spec), await train(pair, spec, kills, after_step=8)
    assert tuple(outcome.killed) == kills
    assert (outcome.state, outcome.digest) == ("succeeded", calm.digest)
    assert faults_of(pair, outcome, spec) == []
    ledger = read_ledger(pair.state.root, outcome.run_id)
    assert worst_difference(pair.state.root, example / "model", ledger) < ROUNDING


@pytest.mark.slow  # the train loop's own tests kill it as well
async def test_kills_change_no_bit_of_a_run_with_a_critic(stack_of, spec, tmp_path):
    """After an update of the critic: one death in the warm-up, and one in a later step, whose policy is not updated yet."""
    trainer = spec["trainer"] | {"critic": {"learning_rate": 1e-3, "updates": 2, "warmup_steps": 12}}
    spec = spec | {"algorithm": {"name": "ppo"}, "trainer": trainer, "schedule": spec["schedule"] | {"steps": 30}}
    point, deaths = "between-critic-and-policy", tmp_path / "deaths"
    deaths.mkdir()
    async with stack_of(1) as stack:
        calm = await train(stack, spec)
        stack.config.environment_overrides["trainer-0"] = {"GRADBUS_CRASH_POINT": f"{point}:7,25", "GRADBUS_CRASH_DIR": str(deaths)}
        await stack.kill("trainer-0")
        await stack.until_ready(["trainer-0"], 300.0)
        outcome = await train(stack, spec)
        assert {marker.name for marker in deaths.iterdir()} == {f"{point}-7", f"{point}-25"}
        assert (calm.state, outcome.state, outcome.digest) == ("succeeded", "succeeded", calm.digest)
        assert faults_of(stack, outcome, spec) == []


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_everything_killed_in_one_run_changes_no_bit(pair, spec, true_digest):
    outcome = await train(pair, spec, [name for name in PROCESSES if name != "gateway"], seed=1)
    assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
    assert faults_of(pair, outcome, spec) == []
