"""The commit point: checkpoints, kills between manifest and head, and what retention deletes."""

import asyncio
import json

import grpc
import pytest

from gradbus.bus import Buckets
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus.run_files.versions import read_versions
from gradbus.v1.weights_pb2 import CheckpointHead, Shard, WeightManifest
from gradbus_weight_store.manifests import Manifests
from gradbus_weight_store.named_blobs import NamedBlobs

from .test_versions import REFUSED, status_of


@pytest.fixture
def objects(object_url):
    return ObjectStore.open(object_url)


async def publish_and_commit(trainer, steps, every=2):
    for step in steps:
        await trainer.publish(step)
        if step % every == 0:
            await trainer.commit(step, pinned=range(max(0, step - 1), step))


async def until(condition):
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - the folder of another process has no event
            await asyncio.sleep(0.02)


async def test_a_checkpoint_is_the_head_once_it_is_committed(store_process, trainer, bus, run_id, objects):
    store_process.start()
    await trainer.publish(0)
    assert await status_of(trainer.checkpoint_head()) == grpc.StatusCode.NOT_FOUND
    manifest = await trainer.commit(0)
    answer = await trainer.checkpoint_head()
    assert answer.manifest == manifest
    head = CheckpointHead.FromString((await (await bus.bucket(Buckets.HEADS)).get(f"{run_id}.checkpoint")).value)
    assert (head.term, head.step, head.digest) == (1, 0, answer.digest)
    assert digest_of(await objects.get_blob(answer.digest)) == answer.digest


async def test_committed_checkpoints_are_listed_as_long_as_retention_keeps_them(store_process, trainer, trainer_of, run_id, write_spec):
    store_process.start()
    await write_spec(run_id, keep=2)
    assert await trainer.committed() == []
    await publish_and_commit(trainer, range(5))
    newer = trainer_of(run_id, term=2)
    newer.previous = trainer.previous
    await publish_and_commit(newer, (5, 6, 7))

    async def swept():
        return await newer.committed() == [4, 6]

    await until(swept)
    assert (await newer.checkpoint_head()).manifest.step == 6, "version 7 is provisional"
    await newer.delete_run()
    assert await newer.committed() == []


async def test_the_same_checkpoint_again_is_the_same_head(store_process, trainer):
    store_process.start()
    manifest = await trainer.commit(0)
    again = await trainer.commit_manifest(manifest)
    assert again.digest == trainer.previous == (await trainer.heads()).checkpoint_digest


async def test_a_checkpoint_follows_the_head_or_comes_with_a_newer_term(store_process, trainer, trainer_of, run_id):
    store_process.start()
    await trainer.commit(2)
    trainer.previous = digest_of(b"something else")
    assert await status_of(trainer.commit(4)) == REFUSED
    newer = trainer_of(run_id, term=2)
    assert await status_of(newer.commit(1)) == REFUSED, "the head never goes back"
    await newer.commit(4)
    heads = await trainer.heads()
    assert (heads.checkpoint_step, heads.checkpoint_digest) == (4, newer.previous)


async def test_a_checkpoint_that_names_a_missing_blob_is_refused(store_process, trainer):
    store_process.start()
    manifest = await trainer.checkpoint(0)
    manifest.optimizer[0].digest = digest_of(b"never stored")
    call = trainer.commit_manifest(manifest)
    assert await status_of(call) == grpc.StatusCode.NOT_FOUND
    assert (await trainer.heads()).checkpoint_step == -1


@pytest.mark.faults
async def test_a_kill_between_manifest_and_head_commits_nothing_and_the_same_call_then_does(store_process, trainer, objects):
    store_process.environment["GRADBUS_CRASH_POINT"] = "between-manifest-and-head:2"
    store_process.start()
    await trainer.commit(0)
    first = trainer.previous
    commit = asyncio.create_task(trainer.commit(2))
    assert await asyncio.to_thread(store_process.process.wait, 60) == -9
    assert len(await objects.list(f"runs/{trainer.run_id}/checkpoints")) == 2, "the manifest was written before the kill"
    await asyncio.gather(commit, return_exceptions=True)
    trainer.previous = first
    store_process.start()
    heads = await trainer.heads()
    assert (heads.checkpoint_step, heads.checkpoint_digest) == (0, first)
    await trainer.commit(2)
    heads = await trainer.heads()
    assert (heads.checkpoint_step, heads.checkpoint_digest) == (2, trainer.previous)


@pytest.mark.faults
async def test_a_kill_mid_publish_leaves_a_version_that_the_same_call_completes(store_process, trainer):
    store_process.environment["GRADBUS_CRASH_POINT"] = "between-version-and-head:3"
    store_process.start()
    await trainer.publish(0)
    await trainer.publish(1)
    publish = asyncio.create_task(trainer.publish(2))
    assert await asyncio.to_thread(store_process.process.wait, 60) == -9
    await asyncio.gather(publish, return_exceptions=True)
    store_process.start()
    assert (await trainer.heads()).version_step == 1
    assert not (await trainer.publish(2)).diverged
    assert (await trainer.heads()).version_step == 2


async def test_retention_keeps_what_a_resume_needs_and_deletes_the_rest(store_process, trainer, write_spec, objects):
    store_process.start()
    await write_spec(trainer.run_id, keep=2, max_staleness=1)
    await publish_and_commit(trainer, range(9))

    async def swept():
        return len(await objects.list(f"runs/{trainer.run_id}/versions")) == 4

    await until(swept)
    listed = await trainer.listed()
    assert [one.step for one in listed.manifests] == [5, 6, 7, 8], "kept checkpoints 6 and 8 pin 5 and 7"
    assert [path.rpartition("/")[2] for path in await objects.list(f"runs/{trainer.run_id}/checkpoints")] == ["6-1", "8-1"]
    assert await status_of(trainer.version(4)) == grpc.StatusCode.OUT_OF_RANGE
    assert await status_of(trainer.version(9)) == grpc.StatusCode.NOT_FOUND
    known = await read_versions(objects, trainer.run_id)
    assert sorted(known.digests) == list(range(9)), "the digests of deleted versions are kept"
    for step in range(9):
        shard = digest_of(f"weights {trainer.run_id} {step}".encode())
        assert await objects.has_blob(shard) == (step >= 5)
    store_process.kill()
    store_process.start()
    assert await status_of(trainer.version(4)) == grpc.StatusCode.OUT_OF_RANGE
    assert (await trainer.version(5)).step == 5


async def test_blobs_that_another_run_or_a_spec_names_are_never_deleted(store_process, trainer, trainer_of, write_spec, objects):
    store_process.start()
    uploaded, shared, alone = b"an uploaded file", b"the same bits in two runs", b"one run's bits"
    other = trainer_of(f"{trainer.run_id}-b")
    await write_spec(trainer.run_id, keep=1, max_staleness=0, train=await objects.put_blob(uploaded))
    await other.publish(0, shared)
    for step, content in enumerate((uploaded, shared, alone)):
        await trainer.publish(step, content)
    await trainer.publish(3)
    await trainer.commit(3)

    async def swept():
        return not await objects.has_blob(digest_of(alone))

    await until(swept)
    assert await objects.get_blob(digest_of(uploaded)) == uploaded
    assert await objects.get_blob(digest_of(shared)) == shared
    assert await status_of(trainer.version(0)) == grpc.StatusCode.OUT_OF_RANGE
    assert (await other.version(0)).step == 0


async def test_the_blobs_that_runs_need_are_read_in_parallel(bus, objects, monkeypatch):
    manifests, digests = Manifests(objects), [digest_of(bytes([number])) for number in range(4)]
    for number, digest in enumerate(digests):
        await manifests.write_version(WeightManifest(run_id=f"run-{number}", term=1, digest=digest, shards=[Shard(digest=digest)]))
    all_asked, paths = asyncio.Barrier(len(digests)), manifests.paths

    async def paths_once_all_are_asked(run_id):
        await all_asked.wait()
        return await paths(run_id)

    monkeypatch.setattr(manifests, "paths", paths_once_all_are_asked)
    named = NamedBlobs(manifests, await bus.bucket(Buckets.RUNS))
    async with asyncio.timeout(60):
        assert await named.among(digests, without={"runs/run-0/versions/0-1"}) == set(digests[1:])


async def test_what_a_kill_left_undeleted_is_deleted_when_the_run_goes_on(store_process, trainer, trainer_of, write_spec, objects):
    store_process.start()
    await publish_and_commit(trainer, range(5))
    store_process.kill()
    await write_spec(trainer.run_id, keep=1, max_staleness=0)
    store_process.start()
    await trainer_of(trainer.run_id, term=2).open()

    async def swept():
        return [path.rpartition("/")[2] for path in await objects.list(f"runs/{trainer.run_id}/versions")] == ["3-1", "4-1"]

    await until(swept)


async def test_a_version_manifest_lost_in_a_power_cut_is_found_in_the_checkpoint(store_process, trainer, objects):
    store_process.start()
    await trainer.publish(1)
    await trainer.publish(2)
    await trainer.commit(2, pinned=[1])
    store_process.kill()
    for path in await objects.list(f"runs/{trainer.run_id}/versions"):
        await objects.put(path, b"")
    store_process.start()
    assert (await trainer.version(1)) == await trainer.manifest(1)
    assert (await trainer.version(2)) == await trainer.manifest(2)


async def test_a_head_that_another_replica_moved_is_read_again(store_process, trainer, bus):
    store_process.start()
    await trainer.publish(0)
    heads = await bus.bucket(Buckets.HEADS)
    await heads.put(f"{trainer.run_id}.term", json.dumps(7).encode())
    entry = await heads.get(f"{trainer.run_id}.version")
    await heads.put(f"{trainer.run_id}.version", entry.value)
    assert await status_of(trainer.publish(1)) == REFUSED
    assert (await trainer.heads()).term == 7
