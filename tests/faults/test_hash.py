"""The hash test: any schedule of faults and worker counts ends in the same weights, bit for bit."""

import pytest
from ledger import check, read_ledger
from smoke import train

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

PROCESSES = ["weight_store", "reward", "conductor", "gateway", "trainer-0", "rollout-0", "nats", "buffer"]
POINTS = {
    "after-append": "conductor",
    "between-manifest-and-head": "weight_store",
    "between-version-and-head": "weight_store",
    "mid-publish": "trainer-0",
    "mid-decode": "rollout-0",
}


def faults_of(stack, outcome, spec):
    schedule = spec["schedule"]
    ledger = read_ledger(stack.state.root, outcome.run_id)
    fixed_lag = schedule["mode"] == "fixed_lag"
    return check(ledger, schedule["groups_per_step"], schedule["steps"], schedule["max_staleness"], fixed_lag=fixed_lag)


@pytest.mark.parametrize("rollouts", [2, 3])
async def test_the_number_of_rollouts_changes_no_bit(stack_of, spec, true_digest, rollouts):
    async with stack_of(rollouts) as stack:
        outcome = await train(stack, spec)
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
        assert faults_of(stack, outcome, spec) == []


async def test_every_process_killed_twice_at_random_changes_no_bit(stack_of, spec, true_digest):
    async with stack_of(2) as stack:
        for seed, name in enumerate(PROCESSES):
            outcome = await train(stack, spec, [name, name], seed)
            assert outcome.killed == [name, name], f"the run ended before {name} was killed twice"
            assert (outcome.state, outcome.digest) == ("succeeded", true_digest), name
            assert faults_of(stack, outcome, spec) == [], name


async def test_two_deaths_at_any_named_point_change_no_bit(stack_of, spec, true_digest, tmp_path):
    async with stack_of(1) as stack:
        for point, name in POINTS.items():
            markers = tmp_path / point
            markers.mkdir()
            fault = {"GRADBUS_FAULT_POINT": f"{point}:2,5", "GRADBUS_FAULT_DIR": str(markers)}
            stack.config.environment_overrides[name] = fault
            await stack.kill(name)
            await stack.until_ready([name], 30.0)
            outcome = await train(stack, spec)
            assert {marker.name for marker in markers.iterdir()} == {f"{point}-2", f"{point}-5"}, f"{name} did not die twice at {point}"
            assert (outcome.state, outcome.digest) == ("succeeded", true_digest), point
            assert faults_of(stack, outcome, spec) == [], point
            del stack.config.environment_overrides[name]


async def test_everything_killed_in_one_run_changes_no_bit(stack_of, spec, true_digest):
    async with stack_of(2) as stack:
        outcome = await train(stack, spec, [name for name in PROCESSES if name != "gateway"], seed=1)
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
        assert faults_of(stack, outcome, spec) == []
