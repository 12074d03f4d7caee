"""Blobs that no run names are deleted after a while; one that was just used or is about to be named never is."""

import asyncio
import os
import time
from types import SimpleNamespace

import pytest
from grpc.aio import AioRpcError

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus import Buckets
from gradbus.control.condemned import Condemned, CondemnedBlobs, key_of
from gradbus.control.runs import RunStatus
from gradbus.errors import StorageError
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus_weight_store.delete_lock import StoreDeleteLock
from gradbus_weight_store.manifests import Manifests
from gradbus_weight_store.named_blobs import NamedBlobs, delete_blobs
from gradbus_weight_store.retention import Retention
from gradbus_weight_store.unnamed_blobs import UnnamedBlobs

GRACE = 1000.0


class Store:
    """Time passes as the test says: blobs and condemned keys are made older."""

    def __init__(self, objects, condemned, runs):
        self.objects = objects
        self.condemned, self.runs = condemned, runs
        self.lock = StoreDeleteLock()
        self.sweeper = UnnamedBlobs(objects, condemned, NamedBlobs(Manifests(objects), runs), self.lock, GRACE)

    async def blob(self, content, seconds_old=0.0):
        digest = await self.objects.put_blob(content)
        written = time.time() - seconds_old
        os.utime(self.objects.local_path(digest), (written, written))
        return digest

    async def due(self, digest):
        """The grace period of a condemned blob is over."""
        since = time.time_ns() - int((GRACE + 1) * 1e9)
        await self.condemned.put(key_of(digest), Condemned(since_unix_ns=since).to_bytes())

    async def is_condemned(self, digest):
        return await self.condemned.get(key_of(digest)) is not None


@pytest.fixture
async def store(bus, objects, monkeypatch):
    buckets = [await bus.bucket(name) for name in (Buckets.CONDEMNED, Buckets.RUNS)]
    for bucket in buckets:
        async with bucket.view() as view:
            for key in list(view.entries):
                await bucket.delete(key)
    made = await buckets[0].created()
    monkeypatch.setattr(type(buckets[0]), "created", lambda _: asyncio.sleep(0, made.replace(year=made.year - 1)))
    return Store(objects, *buckets)


async def test_an_unnamed_blob_is_condemned_and_then_deleted(store):
    old, fresh = await store.blob(b"old", 2 * GRACE), await store.blob(b"fresh")
    await store.sweeper.sweep()
    assert await store.is_condemned(old)
    assert not await store.is_condemned(fresh), "it was uploaded a moment ago"
    await store.sweeper.sweep()
    assert await store.objects.has_blob(old), "whoever is about to name it has the grace period for that"
    await store.due(old)
    await store.sweeper.sweep()
    assert not await store.objects.has_blob(old)
    assert not await store.is_condemned(old)
    assert await store.objects.has_blob(fresh)


@pytest.mark.parametrize("name", ["spec", "status"])
async def test_what_a_run_names_is_neither_condemned_nor_deleted(store, write_spec, name):
    first, second = await store.blob(b"named before", 2 * GRACE), await store.blob(b"named late", 2 * GRACE)

    async def named(run_id, digest):
        if name == "spec":
            await write_spec(run_id, train=digest)
        else:
            await store.runs.put(f"{run_id}.status", RunStatus(state="paused", prompts=digest).to_bytes())

    await named("run-1", first)
    await store.due(second)
    await named("run-2", second)
    await store.sweeper.sweep()
    assert not await store.is_condemned(first)
    assert await store.objects.has_blob(second)
    assert not await store.is_condemned(second)
    await store.runs.delete(f"run-2.{name}")
    await store.sweeper.sweep()
    assert await store.is_condemned(second)


async def test_a_blob_that_is_kept_survives_and_its_keeper_is_told_to_look_again(store):
    digest = await store.blob(b"used again", 2 * GRACE)
    async with store.condemned.view() as view:
        keeper = CondemnedBlobs(store.condemned, view)
        assert not await keeper.keep([digest])
        await store.due(digest)
        await view.catch_up()
        assert await keeper.keep([digest])
        await store.sweeper._delete(digest, is_named=False)  # of a sweep that began before
    assert await store.objects.has_blob(digest)


async def test_whoever_comes_while_a_blob_is_deleted_waits_and_stores_it_again(store, monkeypatch):
    digest = await store.blob(b"deleted now", 2 * GRACE)
    await store.due(digest)
    deleting, go_on = asyncio.Event(), asyncio.Event()
    delete = ObjectStore.delete_blob

    async def slowly(objects, name):
        deleting.set()
        await go_on.wait()
        await delete(objects, name)

    monkeypatch.setattr(ObjectStore, "delete_blob", slowly)
    sweeping = asyncio.create_task(store.sweeper.sweep())
    await deleting.wait()
    keeping = asyncio.create_task(CondemnedBlobs(store.condemned).keep([digest]))
    await asyncio.sleep(0.3)
    assert not keeping.done()
    go_on.set()
    assert await keeping, "the blob may be gone"
    await sweeping
    assert await store.objects.put_blob(b"deleted now") == digest
    assert await store.objects.has_blob(digest)


async def test_a_sweep_that_died_in_the_middle_is_completed_by_the_next(store, monkeypatch):
    digest = await store.blob(b"half deleted", 2 * GRACE)
    await store.condemned.put(key_of(digest), Condemned(since_unix_ns=time.time_ns(), deleting=True).to_bytes())
    monkeypatch.setattr("gradbus.control.condemned._WAIT_SECONDS", 0.2)
    with pytest.raises(StorageError, match="is being deleted"):
        await CondemnedBlobs(store.condemned).keep([digest])
    await store.sweeper.sweep()
    assert not await store.objects.has_blob(digest)
    assert not await CondemnedBlobs(store.condemned).keep([digest])


async def test_blobs_from_before_the_buckets_were_made_are_left_alone(store, monkeypatch):
    digest = await store.blob(b"of an earlier life", 2 * GRACE)
    monkeypatch.undo()
    await store.sweeper.sweep()
    assert not await store.is_condemned(digest)


async def test_blobs_are_not_deleted_while_a_manifest_that_may_name_them_is_stored(store):
    digest = await store.blob(b"shared bits", 2 * GRACE)
    await store.due(digest)
    async with store.lock.storing():
        sweeping = asyncio.create_task(store.sweeper.sweep())
        await asyncio.sleep(0.3)
        assert await store.objects.has_blob(digest)
    await sweeping
    assert not await store.objects.has_blob(digest)


@pytest.fixture
def one_fails(monkeypatch):
    """Makes the deletion of a blob fail while another is under way: call it with the digest."""
    delete, under_way = ObjectStore.delete_blob, asyncio.Event()

    def plant(failing):
        async def planted(objects, digest):
            if digest == failing:
                await under_way.wait()
                raise StorageError("planted")
            under_way.set()
            await asyncio.sleep(0.2)
            await delete(objects, digest)

        monkeypatch.setattr(ObjectStore, "delete_blob", planted)

    return plant


@pytest.mark.parametrize("deleted_by", ["retention", "sweep"])
async def test_when_one_deletion_fails_none_goes_on_without_the_lock(store, one_fails, deleted_by):
    digests = [await store.blob(b"fails", 2 * GRACE), await store.blob(b"goes on", 2 * GRACE)]
    for digest in digests:
        await store.due(digest)
    one_fails(digests[0])
    with pytest.raises(StorageError, match="planted"):
        await (store.sweeper.sweep() if deleted_by == "sweep" else delete_blobs(store.objects, digests))
    assert not await store.objects.has_blob(digests[1]), "nobody may see it once the lock is free"


async def test_a_sweep_that_fails_in_whatever_way_is_followed_by_another(store, monkeypatch):
    digest = await store.blob(b"deleted later", 2 * GRACE)
    await store.due(digest)
    await store.condemned.put("bad", b"no record")
    failed, sweep = asyncio.Event(), store.sweeper.sweep

    async def told():
        try:
            await sweep()
        except ValueError:
            failed.set()
            raise

    monkeypatch.setattr(store.sweeper, "sweep", told)
    monkeypatch.setattr("gradbus_weight_store.unnamed_blobs._FIRST_SECONDS", 0.0)
    monkeypatch.setattr("gradbus_weight_store.unnamed_blobs._MAX_PAUSE_SECONDS", 0.1)
    sweeping = asyncio.create_task(store.sweeper.sweep_forever())
    await failed.wait()
    await store.condemned.purge("bad")
    async with asyncio.timeout(60):
        while await store.objects.has_blob(digest):
            assert not sweeping.done()
            await asyncio.sleep(0.05)
    await cancel_and_wait(sweeping)


async def test_a_run_whose_sweep_fails_in_whatever_way_keeps_no_other_from_its_own(objects):
    class Faulty:
        run_id = "run-faulty"

        @property
        def checkpoint_head(self):
            raise ValueError("planted")

    swept = SimpleNamespace(run_id="run-swept", checkpoint_head=None)
    retention = Retention(Manifests(objects), None, None, StoreDeleteLock())
    retention.schedule(swept)
    retention.schedule(Faulty())
    await retention.settle()
    assert not retention._due


async def test_a_deleted_run_has_no_heads_and_no_manifests_and_old_trainers_stay_fenced(store_process, trainer, trainer_of, objects, bus):
    store_process.start()
    other = trainer_of(f"{trainer.run_id}-b")
    for one in (trainer, other):
        await one.open()
        await one.publish(0, b"shared by both")
        await one.commit(1)
    for _ in range(2):  # it may be repeated
        await trainer.delete_run()
    heads = await bus.bucket(Buckets.HEADS)
    assert await heads.get(f"{trainer.run_id}.version") is None
    assert await heads.get(f"{trainer.run_id}.checkpoint") is None
    assert await objects.list(f"runs/{trainer.run_id}") == []
    assert [one.step for one in (await other.listed()).manifests] == [0]
    assert await objects.has_blob(digest_of(b"shared by both"))
    with pytest.raises(AioRpcError, match=r"term 1 of .* is over"):
        await trainer.publish(2)
    store_process.kill()
    store_process.start()
    with pytest.raises(AioRpcError, match=r"term 1 of .* is over"):
        await trainer.open()
