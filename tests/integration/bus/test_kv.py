"""Buckets on a real NATS."""

import asyncio

import pytest

from gradbus.bus import Buckets, Bus, BusSettings, Conflict
from gradbus.errors import SettingsError


@pytest.fixture
async def bucket(bus):
    return await bus.bucket(Buckets.RUNS)


async def test_a_key_is_created_once(bucket, unique):
    assert await bucket.get(unique) is None
    await bucket.create(unique, b"1")
    with pytest.raises(Conflict):
        await bucket.create(unique, b"2")
    assert (await bucket.get(unique)).value == b"1"


async def test_of_many_creators_one_wins(bucket, unique):
    outcomes = await asyncio.gather(*(bucket.create(unique, bytes([n])) for n in range(8)), return_exceptions=True)
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7


async def test_replacing_needs_the_newest_revision(bucket, unique):
    first = await bucket.create(unique, b"1")
    second = await bucket.update(unique, b"2", first)
    assert second > first
    with pytest.raises(Conflict):
        await bucket.update(unique, b"3", first)
    assert (await bucket.get(unique)).value == b"2"


async def test_a_deleted_key_is_gone_and_can_be_created_again(bucket, unique):
    await bucket.put(unique, b"1")
    await bucket.delete(unique)
    await bucket.delete(unique)
    assert await bucket.get(unique) is None
    await bucket.create(unique, b"2")


async def test_of_a_key_that_changed_only_the_newest_revision_is_deleted(bucket, unique):
    first = await bucket.create(unique, b"1")
    second = await bucket.update(unique, b"2", first)
    with pytest.raises(Conflict):
        await bucket.delete(unique, first)
    await bucket.delete(unique, second)
    assert await bucket.get(unique) is None


async def test_a_bus_that_is_not_there_is_named():
    with pytest.raises(SettingsError, match="GRADBUS_NATS_URL"):
        await Bus.connect(BusSettings("nats://127.0.0.1:1"), "test", wait_seconds=0.5)


async def test_two_processes_make_the_same_streams(own_nats):
    buses = await asyncio.gather(*(Bus.connect(BusSettings(own_nats.url), str(n)) for n in range(4)))
    assert {info.config.name for info in await buses[0].jetstream.streams_info()} >= {"PROMPTS", "EVENTS"}
    for bus in buses:
        await bus.close()
