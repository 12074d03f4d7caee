"""Every hostile submission ends by itself, beside hostile clients and a well-behaved run whose bits do not change."""

import asyncio

import pytest

from gradbus.client import Client
from gradbus_hostile.attack import attacked, newest, submit_all, train
from gradbus_hostile.clients import CLIENTS
from gradbus_hostile.material import Material
from gradbus_hostile.submissions import SUBMISSIONS
from gradbus_hostile.target import Target, kept, memory, new_key, settled

pytestmark = pytest.mark.timeout(1800)
STUCK_SECONDS = 120.0
"""Without any end for so long, the runs that are left are stuck."""
SETTLE_SECONDS = 60.0
TURNS = 5
"""The clients take turns in so many parties."""


@pytest.fixture(scope="module")
def hostile_stack(stack):
    with stack("--trainers", "2", "--rollouts", "2") as state:
        yield state


async def well_behaved(client, spec, until):
    """Digests of the well-behaved run, repeated until the event."""
    digests = set()
    while not until.is_set():
        digests.add((await train(client, spec)).digest)
    return digests


def test_the_table_is_large_and_its_names_are_unique():
    names = [submission.name for submission in SUBMISSIONS]
    assert len(names) == len(set(names)) >= 60
    assert len({client.name for client in CLIENTS}) == len(CLIENTS) >= 20


@pytest.mark.parametrize("share", [pytest.param(24, id="a few"), pytest.param(1, id="all", marks=pytest.mark.slow)])
async def test_hostile_users_hurt_only_themselves(hostile_stack, spec, tmp_path, share):
    good, material, done = (
        spec(name="well-behaved", schedule={"steps": 20}),
        Material(tmp_path, spec(schedule={"steps": 2})),
        asyncio.Event(),
    )
    key, table, ends = new_key(hostile_stack, "hostile"), SUBMISSIONS[::share], []
    crowd = new_key(hostile_stack, "crowd")  # clients use up what their key may upload at a time, and a row would be refused for that
    with Client.discover(hostile_stack) as client, Client(client.url, key) as hostile:
        first, _ = await asyncio.gather(train(client, good), train(client, good))
        before = memory(hostile_stack)
        beside = asyncio.create_task(well_behaved(client, good, done))
        for turn in range(TURNS):
            async with attacked(Target.of(hostile_stack, crowd, newest(client, good["name"])), CLIENTS[turn::TURNS]):
                ends += await submit_all(hostile, material, table[turn::TURNS], STUCK_SECONDS)
        done.set()
        assert await beside == {first.digest}
    assert [(ended.submission.name, ended.end, ended.cause) for ended in ends if not ended.is_allowed] == []
    assert len(ends) == len(table)
    assert kept(before, await settled(hostile_stack, before, SETTLE_SECONDS)) == {}
