"""Batches: many messages by one write, all of them or none."""

import pytest
from nats.js.errors import APIError

from gradbus.bus import Buckets, EventLog
from gradbus.bus.batch import MOST_MESSAGES


@pytest.fixture
async def bucket(bus):
    return await bus.bucket(Buckets.RUNS)


async def test_as_many_messages_as_a_batch_may_hold_are_stored(bus, bucket, unique):
    names = [f"{unique}-{number}" for number in range(MOST_MESSAGES)]
    await bus.publish_batch([bucket.creation(f"{name}.status", b"1") for name in names])
    view = bucket.snapshot("*.status")
    await view.read()
    assert {f"{name}.status" for name in names} <= view.entries.keys()


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_if_one_key_exists_nothing_is_stored(bus, bucket, unique, at):
    names = [f"{unique}-{number}.status" for number in range(3)]
    await bucket.put(names[at], b"mine")
    with pytest.raises(APIError, match="wrong last sequence"):
        await bus.publish_batch([bucket.creation(name, b"1") for name in names])
    stored = [await bucket.get(name) for name in names]
    assert [entry and entry.value for entry in stored] == [b"mine" if number == at else None for number in range(3)]


async def test_a_bucket_of_an_older_release_refuses_batches_and_stores_nothing(own_bus):
    await own_bus.jetstream.create_key_value(bucket=Buckets.RUNS)
    bucket = await own_bus.bucket(Buckets.RUNS)
    with pytest.raises(APIError):
        await own_bus.publish_batch([bucket.creation(f"run-{number}.status", b"1") for number in range(3)])
    assert [await bucket.get(f"run-{number}.status") for number in range(3)] == [None] * 3


async def test_events_of_several_runs_are_stored_together(bus, unique):
    logs = [EventLog(bus, f"{unique}-{number}") for number in range(3)]
    for log in logs:
        log.emit("state", "cancelled", key="state:cancelled")
    await bus.publish_batch([message for log in logs for message in log.take()])
    assert [[event.message for event in await log.read()] for log in logs] == [["cancelled"]] * 3
