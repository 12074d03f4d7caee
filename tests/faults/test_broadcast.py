"""Runs whose versions travel by broadcast end in the weights of runs whose versions do not, whoever dies in one."""

import asyncio

import pytest
from smoke import train

from gradbus.client import Client, document

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def broadcast(spec):
    return spec | {"weights": {"transport": "broadcast"}}


async def broadcasts(stack, run_id):
    """Data of the run's events `broadcast`."""
    with Client(stack.url, stack.api_key) as client:
        events = document(await asyncio.to_thread(client.events_page, run_id, limit=1000))["data"]
    return [event["data"] for event in events if event["type"] == "broadcast"]


async def test_a_run_by_broadcast_ends_in_the_weights_of_one_by_the_store(stack_of, broadcast, true_digest):
    async with stack_of(2) as stack:
        outcome = await train(stack, broadcast, seconds=200)
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
        found = await broadcasts(stack, outcome.run_id)
        whole = [one["version"] for one in found if one["outcome"] == "all" and len(one["received"]) == 2]
        assert len(whole) > 0.8 * outcome.steps, found
        assert any((stack.state.cache / "shards").iterdir())


@pytest.mark.parametrize("name", ["trainer-0", "rollout-0"])
async def test_a_death_in_a_broadcast_changes_no_bit(stack_of, broadcast, true_digest, tmp_path, name):
    fault = {"GRADBUS_CRASH_POINT": "mid-broadcast:3", "GRADBUS_CRASH_DIR": str(tmp_path)}
    async with stack_of(2, environment_overrides={name: fault}) as stack:
        outcome = await train(stack, broadcast, seconds=200)
        assert {marker.name for marker in tmp_path.glob("mid-broadcast-*")} == {"mid-broadcast-3"}
        assert (outcome.state, outcome.digest) == ("succeeded", true_digest)
        found = await broadcasts(stack, outcome.run_id)
        assert {one["outcome"] for one in found[-5:]} == {"all"}
