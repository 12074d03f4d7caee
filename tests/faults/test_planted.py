"""The suite is tested itself: each planted fault must make it fail, and without the fault the same test passes."""

import asyncio
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from grpc.aio import AioRpcError
from ledger import check, read_ledger
from smoke import EXAMPLE, smoke_spec, train, until
from versions import worst_difference
from zombie import ZombieTrainer

from gradbus.client import Client
from gradbus.embedded import Stack, StackConfig

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]
PLANTED = str(Path(__file__).with_name("planted.py"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unplanted(tmp_path_factory):
    """A stack without any fault in it."""
    async with Stack(StackConfig(state=tmp_path_factory.mktemp("unplanted"), port=0)) as stack:
        yield stack


def plant(fault, module):
    return [sys.executable, PLANTED, fault, module]


async def is_whole(stack, spec, kills, true_digest):
    """Whether a run of the hash test passes."""
    try:
        # As long as a run without a fault may take: a machine that is slow must not pass for a fault that was seen.
        outcome = await train(stack, spec, kills, after_step=12)
    except TimeoutError:
        return False
    schedule = spec["schedule"]
    faults = check(
        read_ledger(stack.state.root, outcome.run_id),
        schedule["groups_per_step"],
        schedule["steps"],
        schedule["max_staleness"],
        fixed_lag=True,
    )
    return outcome.state == "succeeded" and outcome.digest == true_digest and not faults


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "name", "module"),
    [
        ("ack_early", "conductor", "gradbus_conductor"),
        ("cursor", "trainer-0", "gradbus_trainer"),
    ],
)
async def test_the_hash_test_sees(stack_of, spec, true_digest, fault, name, module):
    async with stack_of(1, command_overrides={name: plant(fault, module)}) as stack:
        assert not await is_whole(stack, spec, ["trainer-0"], true_digest)


async def zombie_is_refused(stack, spec):
    """A trainer of an older term tries to publish in the middle of a run."""
    client = Client(stack.url, stack.api_key)
    longer = spec | {"schedule": spec["schedule"] | {"steps": 2000}}  # it is cancelled in the end
    run_id = (await asyncio.to_thread(client.submit, longer, EXAMPLE)).id
    zombie = ZombieTrainer(stack, run_id)
    try:
        await until(client, run_id, lambda run: run["progress"]["step"] > 0)
        await zombie.remember()
        await stack.kill("trainer-0")
        newer = ZombieTrainer(stack, run_id)
        while newer.term <= zombie.term:
            await asyncio.sleep(0.2)
            await newer.remember()
        await newer.close()
        try:
            await zombie.publish_the_base_model_as(ahead=5)
        except AioRpcError as error:
            return error.code().name == "FAILED_PRECONDITION"
        return False
    finally:
        await zombie.close()
        await asyncio.to_thread(client.cancel, run_id)
        client.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_trainer_of_an_older_term_is_refused(unplanted, spec):
    assert await zombie_is_refused(unplanted, spec)


@pytest.mark.slow
async def test_the_zombie_test_sees_a_missing_fence(stack_of, spec):
    async with stack_of(1, command_overrides={"weight_store": plant("no_fence", "gradbus_weight_store")}) as stack:
        assert not await zombie_is_refused(stack, spec)


async def version_error(stack, example):
    """Runs `free` with every version kept; how far recorded and recomputed log-probabilities differ."""
    spec = smoke_spec(
        example,
        deterministic=False,
        rollout={"max_new_tokens": 24},
        schedule={"mode": "free", "max_staleness": 2, "steps": 12},
        checkpoint={"every": 1, "keep": 100},
    )
    outcome = await train(stack, spec)
    assert outcome.state == "succeeded"
    return worst_difference(stack.state.root, example / "model", read_ledger(stack.state.root, outcome.run_id))


@pytest.mark.asyncio(loop_scope="module")
async def test_samples_come_from_the_versions_they_name(unplanted, example):
    assert await version_error(unplanted, example) < 1e-3


@pytest.mark.slow
async def test_the_version_test_sees_a_version_read_after_the_reply(stack_of, example):
    async with stack_of(1, command_overrides={"rollout-0": plant("version_after_reply", "gradbus_rollout")}) as stack:
        assert await version_error(stack, example) > 1e-3
