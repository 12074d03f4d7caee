"""Buckets on a real NATS."""

import asyncio

import pytest
from nats.js import JetStreamContext
from structlog.testing import capture_logs

from gradbus.bus import Buckets, Bus, BusSettings, Conflict, kv
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


async def test_a_bus_that_does_not_come_up_leaves_no_connection(own_nats, monkeypatch):
    monkeypatch.setattr(JetStreamContext, "add_stream", lambda *_, **__: asyncio.sleep(3600))
    before = asyncio.all_tasks()
    with pytest.raises(SettingsError, match="did not answer"):
        await Bus.connect(BusSettings(own_nats.url), "test", wait_seconds=1.0)
    async with asyncio.timeout(60):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110 - the tasks of a closed client end by themselves
            await asyncio.sleep(0.05)


async def test_an_address_is_told_without_its_password():
    with capture_logs() as logs, pytest.raises(SettingsError) as refused:
        await Bus.connect(BusSettings("nats://user:secret@127.0.0.1:1"), "test", wait_seconds=0.5)
    assert "nats://127.0.0.1:1" in str(refused.value)
    assert "secret" not in f"{refused.value} {logs}"


async def test_two_processes_make_the_same_streams(own_nats):
    buses = await asyncio.gather(*(Bus.connect(BusSettings(own_nats.url), str(n)) for n in range(4)))
    assert {info.config.name for info in await buses[0].jetstream.streams_info()} >= {"PROMPTS", "EVENTS"}
    for bus in buses:
        await bus.close()


async def test_a_purged_key_is_gone_even_from_the_stream_after_a_while(own_bus, monkeypatch):
    monkeypatch.setattr(kv, "MARKER_TTL_SECONDS", 1.0)
    bucket = await own_bus.bucket(Buckets.RUNS)
    revision = await bucket.put("run-1.spec", b"1")
    await bucket.put("run-2.spec", b"2")
    with pytest.raises(Conflict):
        await bucket.purge("run-1.spec", revision + 1)
    async with bucket.view() as view:
        await bucket.purge("run-1.spec", revision)
        await view.catch_up()
        assert dict(view.entries) == {"run-2.spec": b"2"}
    assert await bucket.get("run-1.spec") is None
    await bucket.purge("run-1.spec")  # there is none
    async with asyncio.timeout(60):
        while (await own_bus.jetstream.stream_info("KV_runs")).state.messages > 1:  # noqa: ASYNC110 - the server removes it
            await asyncio.sleep(0.1)
    await bucket.create("run-1.spec", b"3")
    assert (await bucket.get("run-1.spec")).value == b"3"


async def test_a_key_written_for_a_time_expires(own_bus):
    bucket = await own_bus.bucket(Buckets.HEADS)
    await bucket.put("run-1.term", b"1")
    await bucket.put_for("run-1.term", b"2", 5.0)
    assert (await bucket.get("run-1.term")).value == b"2"
    async with asyncio.timeout(60):
        while await bucket.get("run-1.term") is not None:  # noqa: ASYNC110 - the server removes it
            await asyncio.sleep(0.1)
