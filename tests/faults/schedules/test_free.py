"""The `free` schedule: nothing is lost or doubled, and no sample is older than allowed, whatever dies."""

import pytest
from ledger import check, read_ledger
from smoke import smoke_spec, train

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def free_spec(example):
    schedule = {"mode": "free", "max_staleness": 2, "steps": 40}
    return smoke_spec(example, deterministic=False, schedule=schedule)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("rollout-0", "rollout-1", "conductor", "conductor"), marks=pytest.mark.slow),
        pytest.param(("trainer-0", "weight_store", "reward", "trainer-0"), marks=pytest.mark.slow),
        ("nats", "buffer", "rollout-0", "weight_store", "conductor", "trainer-0"),
    ],
    ids=["quiet", "workers", "trainer", "all"],
)
async def test_killing_any_process_loses_and_doubles_nothing(stack_of, free_spec, kills):
    async with stack_of(2) as stack:
        outcome = await train(stack, free_spec, kills, seed=len(kills))
        assert outcome.state == "succeeded"
        ledger = read_ledger(stack.state.root, outcome.run_id)
    schedule = free_spec["schedule"]
    assert check(ledger, schedule["groups_per_step"], schedule["steps"], schedule["max_staleness"], fixed_lag=False) == []
