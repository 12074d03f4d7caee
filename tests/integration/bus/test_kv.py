"""Buckets and views on a real NATS."""

import asyncio

import pytest

from gradbus.bus import Buckets, Bus, BusSettings, Conflict, kv
from gradbus.errors import SettingsError


@pytest.fixture
async def bucket(bus):
    return await bus.bucket(Buckets.RUNS)


async def until(view, condition):
    async with asyncio.timeout(20):
        while not condition():
            view.changed.clear()
            if not condition():
                await view.changed.wait()


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


async def test_a_bucket_that_takes_longer_to_read_than_a_view_lasts_is_read_all_the_same(own_bus, monkeypatch):
    bucket = await own_bus.bucket(Buckets.RUNS)
    await asyncio.gather(*(bucket.put(f"run-{n}.spec", b"1") for n in range(200)))
    monkeypatch.setattr(kv, "RESYNC_SECONDS", 1e-6)
    async with asyncio.timeout(20), bucket.view() as view:
        assert len(view.entries) == 200


async def test_a_view_outlives_whatever_breaks_its_watch(bucket, unique, monkeypatch):
    async with bucket.view(f"{unique}.*") as view:
        with monkeypatch.context() as patch:
            patch.setattr(view._store, "watch", None)  # a fault that nobody thought of
            await asyncio.sleep(kv.RESYNC_SECONDS + 0.5)
        await bucket.put(f"{unique}.spec", b"1")
        await until(view, lambda: view.get(f"{unique}.spec") == b"1")


async def test_a_view_is_filled_before_its_block_and_follows(bucket, unique):
    await bucket.put(f"{unique}.spec", b"1")
    await bucket.put(f"{unique}.gone", b"1")
    await bucket.delete(f"{unique}.gone")
    async with bucket.view(f"{unique}.*") as view:
        assert dict(view.entries) == {f"{unique}.spec": b"1"}
        await bucket.put(f"{unique}.status", b"2")
        await until(view, lambda: view.get(f"{unique}.status") == b"2")
        await bucket.delete(f"{unique}.spec")
        await until(view, lambda: view.get(f"{unique}.spec") is None)


async def test_a_view_heals_after_its_server_was_killed(own_nats, own_bus):
    bucket = await own_bus.bucket(Buckets.RUNS)
    await bucket.put("run.spec", b"1")
    async with bucket.view() as view:
        own_nats.kill()
        own_nats.start()
        other = await Bus.connect(BusSettings(own_nats.url), "writer")
        await (await other.bucket(Buckets.RUNS)).put("run.desired", b"2")
        await other.close()
        await until(view, lambda: dict(view.entries) == {"run.spec": b"1", "run.desired": b"2"})


async def test_a_view_heals_when_its_consumer_is_removed_behind_its_back(own_bus):
    bucket = await own_bus.bucket(Buckets.RUNS)
    async with bucket.view() as view:
        for consumer in await own_bus.jetstream.consumers_info("KV_runs"):
            await own_bus.jetstream.delete_consumer("KV_runs", consumer.name)
        await bucket.put("run.spec", b"1")
        await until(view, lambda: view.get("run.spec") == b"1")


async def test_the_consumers_of_views_end_with_them(own_bus, eventually):
    bucket = await own_bus.bucket(Buckets.RUNS)
    for _ in range(5):
        async with bucket.view():
            pass

    async def are_gone():
        return await own_bus.jetstream.consumers_info("KV_runs") == []

    await eventually(are_gone)


async def test_a_bus_that_is_not_there_is_named():
    with pytest.raises(SettingsError, match="GRADBUS_NATS_URL"):
        await Bus.connect(BusSettings("nats://127.0.0.1:1"), "test", wait_seconds=0.5)


async def test_two_processes_make_the_same_streams(own_nats):
    buses = await asyncio.gather(*(Bus.connect(BusSettings(own_nats.url), str(n)) for n in range(4)))
    assert {info.config.name for info in await buses[0].jetstream.streams_info()} >= {"PROMPTS", "EVENTS"}
    for bus in buses:
        await bus.close()
