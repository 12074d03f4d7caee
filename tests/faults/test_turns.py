"""Turns on one device: whoever dies at whichever point of a turn, the run ends in the weights of two devices."""

import pytest
from ledger import check, read_ledger
from smoke import train

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


def in_turns(spec):
    return spec | {"rollout": spec["rollout"] | {"placement": "timed"}}


@pytest.mark.parametrize("point", ["device-taken", "device-resumed", "device-released", "device-given-back"])
async def test_trainer_and_rollout_killed_at_a_point_of_their_turns_change_no_bit(stack_of, spec, true_digest, tmp_path, point):
    async with stack_of(1) as stack:
        for name, passes in {"trainer-0": "2,5", "rollout-0": "3,4"}.items():
            (tmp_path / name).mkdir()
            stack.config.environment_overrides[name] = {
                "GRADBUS_CRASH_POINT": f"{point}:{passes}",
                "GRADBUS_CRASH_DIR": str(tmp_path / name),
            }
            await stack.kill(name)
        await stack.until_ready(["trainer-0", "rollout-0"], 300.0)
        outcome = await train(stack, in_turns(spec))
        for name in ("trainer-0", "rollout-0"):
            assert len(list((tmp_path / name).iterdir())) == 2, f"{name} did not die twice at {point}"
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
        schedule = spec["schedule"]
        ledger = read_ledger(stack.state.root, outcome.run_id)
        assert check(ledger, schedule["groups_per_step"], schedule["steps"], schedule["max_staleness"], fixed_lag=True) == []


async def test_two_rollouts_on_one_device_change_no_bit(stack_of, spec, true_digest):
    async with stack_of(2) as stack:
        outcome = await train(stack, in_turns(spec))
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
