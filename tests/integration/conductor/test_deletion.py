"""A deleted run leaves nothing, whenever the conductor dies meanwhile, and takes nothing of other runs with it."""

import asyncio
import dataclasses
import json

import pytest
from grpc.aio import AioRpcError
from structlog.testing import capture_logs

from gradbus.aio.tasks import cancel_and_wait
from gradbus.buffer import keys
from gradbus.bus import Bucket, Buckets, EventLog
from gradbus.control.runs import RunStatus, deletion_key
from gradbus.errors import CorruptRecordError
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.experience.archive import ArchiveWriter
from gradbus.run_files.record import store_record
from gradbus.v1.group_pb2 import LogEntry
from gradbus.v1.weight_store_service_pb2 import PublishVersionRequest
from gradbus.v1.weights_pb2 import Shard, WeightManifest
from gradbus_conductor.runs import deletion
from gradbus_conductor.runs.deletion import RunDeletion
from gradbus_conductor.runs.index import RunIndex

KINDS = ("spec", "status", "desired", "evaluations", "annotations", "scorers_wanted", "scorers")


class Life:
    """A run as it is stored after its end, and what is left of it."""

    def __init__(self, clients, runs, record, group):
        self.clients, self.runs, self.record, self.group = clients, runs, record, group
        self.run_id = record.run_id
        self.deletion = RunDeletion(clients, runs, RunIndex(runs.snapshot()))

    async def lives(self, begun=True):
        run_id = self.run_id
        await self.runs.put(f"{run_id}.spec", self.record.to_bytes())
        await self.runs.put(f"idempotency.key.{self.record.idempotency_key}", json.dumps({"body": "b", "run_id": run_id}).encode())
        await self.runs.put(f"{run_id}.status", RunStatus(state="succeeded", prompts="sha256:0" if begun else "").to_bytes())
        await EventLog(self.clients.bus, run_id).flush()
        history = EventLog(self.clients.bus, run_id)
        history.emit("state", "succeeded")
        await history.wait_until_stored()
        if begun:
            for kind in ("evaluations", "annotations", "scorers_wanted", "scorers"):
                await self.runs.put(f"{run_id}.{kind}", b"[]")
            log = ExperienceLog(self.clients.buffer, run_id)
            await log.append(7, {0: LogEntry(index=0)})
            await ArchiveWriter(self.clients.objects, log, run_id).finish()
            await store_record(self.clients.objects, self.record)
            await GroupStore(self.clients.buffer, run_id).put([self.group(1, run_id=run_id)])
            weights = await self.clients.objects.put_blob(b"weights")
            manifest = WeightManifest(run_id=run_id, term=1, digest=weights, shards=[Shard(digest=weights, size_bytes=7, tensors=["w"])])
            await self.clients.weight_store.PublishVersion(PublishVersionRequest(manifest=manifest))
            await (await self.clients.bus.bucket(Buckets.PROBES)).put(run_id, b"digest")

    async def left(self):
        run_id, heads = self.run_id, await self.clients.bus.bucket(Buckets.HEADS)
        probes = await self.clients.bus.bucket(Buckets.PROBES)
        found = [f"{run_id}.{kind}" for kind in KINDS if await self.runs.get(f"{run_id}.{kind}")]
        found += [key for key in (f"{run_id}.version", f"{run_id}.checkpoint") if await heads.get(key)]
        found += ["probe"] if await probes.get(run_id) else []
        found += await self.clients.objects.list(f"runs/{run_id}")
        found += [key.decode() async for key in self.clients.buffer.scan_iter(match=keys.everything(run_id))]
        found += [event.type for event in await EventLog(self.clients.bus, run_id).read()]
        key = await self.runs.get(f"idempotency.key.{self.record.idempotency_key}")
        return found + (["idempotency"] if key else [])


@pytest.fixture
async def life(clients, stub, record, run_id, group):
    clients = dataclasses.replace(clients, weight_store=stub)
    runs = await clients.bus.bucket(Buckets.RUNS)
    yield Life(clients, runs, record().model_copy(update={"idempotency_key": f"hash-{run_id}"}), group)
    for kind in KINDS:
        await runs.delete(f"{run_id}.{kind}")


async def request(life):
    await life.runs.put(f"{life.run_id}.desired", b'"deleted"')


async def test_a_deleted_run_leaves_only_what_fences_old_processes_and_that_expires(life):
    await life.lives()
    assert len(await life.left()) >= 10
    await life.deletion.delete(life.run_id)
    assert len(await life.left()) >= 10, "nobody asked for it"
    await request(life)
    await life.deletion.delete(life.run_id)
    assert await life.left() == [keys.term(life.run_id)]
    assert 0 < await life.clients.buffer.ttl(keys.term(life.run_id)) <= 86_400
    await life.deletion.delete(life.run_id)


async def test_a_deleted_run_is_remembered_for_a_day(life, monkeypatch):
    monkeypatch.setattr(deletion, "DELETED_SECONDS", 1.0)
    await life.lives(begun=False)
    await request(life)
    await life.deletion.delete(life.run_id)
    assert await life.runs.get(deletion_key(life.run_id)) is not None
    async with asyncio.timeout(60):
        while await life.runs.get(deletion_key(life.run_id)) is not None:  # noqa: ASYNC110 - NATS removes it
            await asyncio.sleep(0.2)


async def test_a_run_that_never_began_is_deleted_without_the_weight_store(life, weight_store):
    await life.lives(begun=False)
    await request(life)
    await weight_store.stop()
    await life.deletion.delete(life.run_id)
    assert await life.left() == []


async def test_whenever_a_conductor_dies_the_next_one_completes_the_deletion(life, monkeypatch):
    real, calls = Bucket.purge, []

    async def purge_or_die(bucket, key, revision=None):
        calls.append(key)
        if len(calls) == fatal:
            raise ConnectionError("the conductor dies here")
        await real(bucket, key, revision)

    record = life.record
    for fatal in range(1, 15):
        life.run_id = f"{record.run_id}-{fatal}"  # a deleted run's id is fenced
        life.record = record.model_copy(update={"run_id": life.run_id, "idempotency_key": f"hash-{fatal}"})
        calls.clear()
        monkeypatch.setattr(Bucket, "purge", real)
        await life.lives()
        await request(life)
        monkeypatch.setattr(Bucket, "purge", purge_or_die)
        died = False
        try:
            await life.deletion.delete(life.run_id)
        except (ConnectionError, AioRpcError):  # the weight store dies with it
            died = True
            assert (await life.runs.get(f"{life.run_id}.desired")).value == b'"deleted"', "the wish goes last"
            await life.deletion.delete(life.run_id)
        assert await life.left() == [keys.term(life.run_id)]
        if not died:
            break
    assert fatal == 13, "it died before each of its twelve writes"
    assert not died


@pytest.mark.parametrize("status", [b"no status", b'{"state": "running"}'])
async def test_a_run_whose_status_shows_no_end_is_not_deleted_and_the_error_says_what_to_do(life, status):
    await life.lives()
    await request(life)
    await life.runs.put(f"{life.run_id}.status", status)
    with pytest.raises(CorruptRecordError, match=f"{life.run_id}.status in the bucket `runs` .* restore its value, or delete the keys"):
        await life.deletion.delete(life.run_id)
    assert len(await life.left()) >= 10


async def test_a_record_of_an_idempotency_key_that_cannot_be_read_delays_that_run_alone(life, monkeypatch):
    monkeypatch.setattr(deletion, "_RETRY_SECONDS", 0.05)
    await life.lives()
    await life.runs.put(f"idempotency.key.{life.record.idempotency_key}", b"no record")
    await request(life)
    async with life.runs.view("*.*") as view:
        runs = RunIndex(view)
        with capture_logs() as logs:
            deleting = asyncio.create_task(RunDeletion(life.clients, life.runs, runs).delete_forever())
            async with asyncio.timeout(60):
                while not any(line["event"] == "run_deletion_failed" for line in logs):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                await life.runs.delete(f"idempotency.key.{life.record.idempotency_key}")
                while runs.place(life.run_id) is not None:  # noqa: ASYNC110 - an index has no condition of its own
                    await asyncio.sleep(0.02)
        await cancel_and_wait(deleting)


async def test_runs_that_cannot_be_deleted_keep_no_others_waiting(life, monkeypatch):
    monkeypatch.setattr(deletion, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(deletion, "_BATCH", 1)
    broken = {"run-0.status": b"no status", "run-0.desired": b'"deleted"'}
    for key, value in broken.items():
        await life.runs.put(key, value)
    await life.lives(begun=False)
    await request(life)
    async with life.runs.view("*.*") as view:
        runs = RunIndex(view)
        assert runs.names("deleted")[0] == "run-0"
        deleting = asyncio.create_task(RunDeletion(life.clients, life.runs, runs).delete_forever())
        async with asyncio.timeout(60):
            while runs.place(life.run_id) is not None:  # noqa: ASYNC110 - an index has no condition of its own
                await asyncio.sleep(0.02)
        assert "run-0" in runs.names("deleted")
        for key in broken:
            await life.runs.delete(key)
        await cancel_and_wait(deleting)


async def test_an_idempotency_key_that_belongs_to_another_run_by_now_stays(life):
    await life.lives()
    await life.runs.put(f"idempotency.key.{life.record.idempotency_key}", b'{"body": "b", "run_id": "run-other"}')
    await request(life)
    await life.deletion.delete(life.run_id)
    assert "idempotency" in await life.left()


async def test_deletions_wait_while_the_weight_store_is_away(life, weight_store, monkeypatch):
    monkeypatch.setattr(deletion, "_RETRY_SECONDS", 0.05)
    await life.lives()
    await weight_store.stop()
    async with life.runs.view("*.*") as view:
        runs = RunIndex(view)
        deleting = asyncio.create_task(RunDeletion(life.clients, life.runs, runs).delete_forever())
        await request(life)
        await asyncio.sleep(1.0)
        assert await life.runs.get(f"{life.run_id}.spec") is not None
        await weight_store.start()
        async with asyncio.timeout(60):
            while runs.place(life.run_id) is not None:  # noqa: ASYNC110 - an index has no condition of its own
                await asyncio.sleep(0.05)
        deleting.cancel()
    assert await life.left() == [keys.term(life.run_id)]
