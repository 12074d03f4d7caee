"""The hash test over many seeds: minutes each, run by `make test-faults`."""

import random

import pytest
from ledger import check, read_ledger
from smoke import smoke_spec, train
from test_hash import PROCESSES, faults_of

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]
KILLS = 6


@pytest.mark.parametrize("seed", range(20))
async def test_any_schedule_of_kills_changes_no_bit(stack_of, spec, true_digest, seed):
    draw = random.Random(seed)
    async with stack_of(draw.randint(1, 3)) as stack:
        outcome = await train(stack, spec, draw.choices(PROCESSES, k=KILLS), seed, seconds=400.0)
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
        assert faults_of(stack, outcome, spec) == []


@pytest.mark.parametrize("seed", range(20))
async def test_any_schedule_of_kills_loses_and_doubles_nothing_in_free(stack_of, example, seed):
    draw = random.Random(seed)
    lag = draw.randint(0, 3)
    spec = smoke_spec(example, deterministic=False, schedule={"mode": "free", "max_staleness": lag})
    async with stack_of(draw.randint(1, 3)) as stack:
        outcome = await train(stack, spec, draw.choices(PROCESSES, k=KILLS), seed, seconds=400.0)
        assert outcome.state == "succeeded"
        schedule = spec["schedule"]
        ledger = read_ledger(stack.state.root, outcome.run_id)
    assert check(ledger, schedule["groups_per_step"], schedule["steps"], lag, fixed_lag=False) == []


@pytest.mark.parametrize("transport", ["store", "broadcast"])
async def test_kills_change_no_bit_of_adapters(stack_of, example, transport):
    changes = {"trainer": {"learning_rate": 0.02, "lora": {"rank": 4}}, "algorithm": {"kl": 0.02}, "weights": {"transport": transport}}
    spec = smoke_spec(example, **changes)
    kills = [name for name in PROCESSES if name != "gateway"]
    async with stack_of(2) as stack:
        quiet, killed = await train(stack, spec, seconds=400.0), await train(stack, spec, kills, 1, seconds=400.0)
        assert (quiet.state, killed.state, killed.digest) == ("succeeded", "succeeded", quiet.digest)
        assert killed.killed == kills
        assert faults_of(stack, killed, spec) == []
