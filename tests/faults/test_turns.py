"""Turns on one device: whoever dies at whichever point of a turn, the run ends in the weights of two devices."""

import pytest
from ledger import check, read_ledger
from smoke import train

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]  # a run without deaths is in tests/e2e/placement

# Of the trainer and of the rollout.
ONCE, TWICE = ("2", "3"), ("2,5", "3,4")
POINTS = [
    ("device-released", "device-given-back", ONCE),
    ("device-taken", "device-given-back", TWICE),
    ("device-released", "device-resumed", TWICE),
    ("device-resumed", "device-released", TWICE),
    ("device-given-back", "device-taken", TWICE),
]


@pytest.fixture
def apart(spec):
    """A run that is over soon after the last death."""
    steps = 8
    return spec | {"schedule": spec["schedule"] | {"steps": steps}, "evaluation": spec["evaluation"] | {"every": steps}}


def in_turns(spec):
    return spec | {"rollout": spec["rollout"] | {"placement": "timed"}}


@pytest.mark.parametrize(("trainers", "rollouts", "passes"), POINTS)
async def test_trainer_and_rollout_killed_at_points_of_their_turns_change_no_bit(stack_of, apart, tmp_path, trainers, rollouts, passes):
    points, faults = {"trainer-0": f"{trainers}:{passes[0]}", "rollout-0": f"{rollouts}:{passes[1]}"}, {}
    for name, point in points.items():
        (tmp_path / name).mkdir()
        faults[name] = {"GRADBUS_CRASH_POINT": point, "GRADBUS_CRASH_DIR": str(tmp_path / name)}
    async with stack_of(1, environment_overrides=faults) as stack:
        calm, outcome = await train(stack, apart), await train(stack, in_turns(apart))
        for name, point in points.items():
            assert len(list((tmp_path / name).iterdir())) == len(point.split(",")), f"{name} did not die at {point}"
        assert (calm.state, outcome.state, outcome.digest) == ("succeeded", "succeeded", calm.digest)
        schedule = apart["schedule"]
        ledger = read_ledger(stack.state.root, outcome.run_id)
        assert check(ledger, schedule["groups_per_step"], schedule["steps"], schedule["max_staleness"], fixed_lag=True) == []


async def test_two_rollouts_on_one_device_change_no_bit(stack_of, apart):
    async with stack_of(2) as stack:
        calm, outcome = await train(stack, apart), await train(stack, in_turns(apart))
        assert (calm.state, outcome.state, outcome.digest) == ("succeeded", "succeeded", calm.digest)
