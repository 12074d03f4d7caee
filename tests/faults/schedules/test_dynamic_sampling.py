"""Dynamic sampling: every step is full, and any kill ends in the same weights and the same log."""

import pytest
from ledger import check, read_ledger
from smoke import smoke_spec, train

from gradbus.v1.group_pb2 import Verdict

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
SIZE, STEPS = 8, 14


@pytest.fixture(scope="module")
def dynamic_spec(example):
    schedule = {"groups_per_step": SIZE, "steps": STEPS, "max_staleness": 1, "dynamic_sampling": 16}
    return smoke_spec(example, schedule=schedule)


@pytest.mark.slow
async def test_kills_change_no_bit_of_a_run_that_replaces_filtered_groups(stack_of, dynamic_spec):
    async with stack_of(2) as stack:
        calm = await train(stack, dynamic_spec)
        killed = await train(stack, dynamic_spec, ("conductor", "rollout-0", "trainer-0", "conductor"), after_step=4)
        ledgers = [read_ledger(stack.state.root, outcome.run_id) for outcome in (calm, killed)]
    assert (calm.state, killed.state, killed.digest) == ("succeeded", "succeeded", calm.digest)
    assert len(killed.killed) == 4
    for ledger in ledgers:
        assert check(ledger, SIZE, STEPS, 1, fixed_lag=True, dynamic=True) == []
    frontiers = [ledger.checkpoints[-1].frontier for ledger in ledgers]
    assert (frontiers[0].below, frontiers[0].extents) == (frontiers[1].below, frontiers[1].extents)
    filtered = [index for index, entry in ledgers[0].entries.items() if entry.verdict == Verdict.VERDICT_FILTERED]
    assert len(filtered) > STEPS, "many groups were replaced"
