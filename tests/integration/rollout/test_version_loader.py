"""A worker follows the published versions and loads their weights into its engine with attestation."""

import asyncio

import pytest
from obstore.store import MemoryStore
from structlog.testing import capture_logs

from gradbus.bus import Buckets
from gradbus.control.runs import WorkerPresence
from gradbus.errors import AttestationError, VersionGoneError
from gradbus.objects import ObjectStore
from gradbus.spec import WeightsSpec
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.weights_pb2 import CheckpointManifest, Frontier, WeightManifest
from gradbus_rollout.weights.version_loader import VersionLoader
from gradbus_trainer.versions.writer import VersionWriter

from .conftest import until


@pytest.fixture
def new_versions(bus, objects, stub, run_id, tmp_path):
    return lambda store=objects: VersionLoader(bus, store, stub, run_id, tmp_path / "cache")


@pytest.fixture
async def versions(new_versions):
    versions = new_versions()
    async with versions.followed():
        yield versions


async def test_published_versions_are_known(versions, trainer):
    assert (versions.newest, versions.digest(0)) == (-1, "")
    manifest = await trainer.publish(0)
    await until(lambda: versions.newest == 0)
    assert versions.digest(0) == manifest.digest
    assert versions.changed.is_set()


async def test_a_worker_that_comes_late_learns_the_newest_version_from_the_store(new_versions, trainer):
    await trainer.publish(0)
    manifest = await trainer.publish(1)
    late = new_versions()
    async with late.followed():
        await until(lambda: late.newest == 1)
        assert late.digest(1) == manifest.digest


async def test_loaded_weights_are_attested_to_the_store(versions, trainer, engine, stub, run_id, bus):
    presence = WorkerPresence(worker="worker-a", role="rollout", incarnation="1", run_id=run_id)
    manifest = await trainer.publish(0)
    assert await versions.load(engine, "worker-a", 0) == manifest.digest
    assert engine.version == 0

    async def is_attested():
        await (await bus.bucket(Buckets.WORKERS)).put("worker-a", presence.to_bytes())  # it lives
        attestations = (await stub.ListVersions(pb.ListVersionsRequest(run_id=run_id))).attestations
        return [(one.worker, one.digest) for one in attestations] == [("worker-a", manifest.digest)]

    await until(is_attested)


async def test_weights_that_are_deleted_while_they_are_fetched_are_a_version_that_is_gone(versions, trainer, engine):
    class Late:
        """Retention comes between finding the shard and opening it."""

        async def load(self, paths, step, probe=None):
            paths[0].unlink()
            return await engine.load(paths, step)

    await trainer.publish(0)
    await until(lambda: versions.newest == 0)
    with pytest.raises(VersionGoneError, match="version 0"):
        await versions.load(Late(), "worker-a", 0)


async def test_an_older_version_that_the_head_did_not_name_here_is_asked_for(trainer, engine, new_versions):
    first = await trainer.publish(0)
    await trainer.publish(1)
    assert await new_versions().load(engine, "worker-a", 0) == first.digest


async def test_a_weight_store_that_is_away_is_asked_again(trainer, engine, new_versions, weight_store):
    first = await trainer.publish(0)
    await trainer.publish(1)
    await weight_store.stop()
    with capture_logs() as logs:
        task = asyncio.create_task(new_versions().load(engine, "worker-a", 0))
        await until(lambda: any(line["event"] == "weight_store_unreachable" for line in logs) or task.done())
    assert not task.done()
    await weight_store.start()
    assert await asyncio.wait_for(task, 60) == first.digest


async def test_the_newest_version_never_goes_back(versions, trainer):
    for step in range(3):
        await trainer.publish(step)
    await until(lambda: versions.newest == 2)
    await trainer.publish(0, term=2)
    await trainer.publish(1, seed=99, term=2)
    await until(lambda: versions.digest(1) == trainer.published[1].digest)
    assert versions.newest == 2


async def test_of_one_number_the_higher_term_is_followed(versions, trainer, engine, bus, run_id):
    old = await trainer.publish(0)
    assert await versions.load(engine, "worker-a", 0) == old.digest
    new = await trainer.publish(0, seed=99, term=2)
    await until(lambda: versions.digest(0) == new.digest)
    heads = await bus.bucket(Buckets.HEADS)
    await heads.put(f"{run_id}.version", old.SerializeToString())
    await heads.put(f"{run_id}.version", WeightManifest(run_id=run_id, step=5, term=1).SerializeToString())
    await until(lambda: versions.newest == 5)
    assert await versions.load(engine, "worker-a", 0) == new.digest != old.digest


async def test_a_version_whose_weights_or_manifest_are_gone_says_so(versions, trainer, engine, objects, run_id, stub, new_record):
    await new_record()
    manifest = await trainer.publish(0)
    await objects.delete_blob(manifest.shards[0].digest)
    with pytest.raises(VersionGoneError, match="its tasks are abandoned"):
        await versions.load(engine, "worker-a", 0)
    with pytest.raises(VersionGoneError, match="version 7 is gone"):
        await versions.load(engine, "worker-a", 7)
    await trainer.publish(1)
    newest = await trainer.publish(2)
    checkpoint = CheckpointManifest(run_id=run_id, term=1, step=2, weights=newest, pinned=[newest], frontier=Frontier(below=4))
    await stub.CommitCheckpoint(pb.CommitCheckpointRequest(manifest=checkpoint))

    async def is_deleted():
        return [one.step for one in (await stub.ListVersions(pb.ListVersionsRequest(run_id=run_id))).manifests] == [1, 2]

    await until(is_deleted)
    with pytest.raises(VersionGoneError, match="version 0"):
        await versions.load(engine, "worker-a", 0)


async def test_weights_that_are_not_the_manifests_are_refused(versions, trainer, engine, bus, run_id):
    manifest = await trainer.publish(0)
    lie = WeightManifest()
    lie.CopyFrom(manifest)
    lie.digest, lie.term = trainer.published[0].shards[0].digest, 2
    await (await bus.bucket(Buckets.HEADS)).put(f"{run_id}.version", lie.SerializeToString())
    await until(lambda: versions.digest(0) == lie.digest)
    with pytest.raises(AttestationError, match="it is loaded again"):
        await versions.load(engine, "worker-a", 0)
    assert await versions.load(engine, "worker-a", 0) == manifest.digest, "the store is asked again"


@pytest.fixture
def writer(objects, run_id):
    return VersionWriter(objects, run_id, 1, WeightsSpec(transport="delta", dtype="bf16", anchor_every=8))


async def test_bfloat16_versions_that_travel_as_deltas_are_attested_to_the_bit(versions, trainer, engine, writer):
    for step in range(3):
        manifest = await trainer.publish(step, seed=0, nudge=float(step), writer=writer)
        assert await versions.load(engine, "worker-a", step) == manifest.digest
        assert manifest.shards[0].delta_only is (step > 0)


async def test_a_float32_engine_that_holds_more_than_the_stored_bits_attests_others(trainer, engine, versions, writer):
    manifest = await trainer.publish(0, writer=writer)
    assert await versions.load(engine, "worker-a", 0) == manifest.digest
    weights = engine._model.weights
    weights.norm[0] += 1e-6
    assert weights.digest() != manifest.digest


@pytest.fixture
async def bucket(objects):
    """A store that is no folder, with the same blobs."""
    copy = ObjectStore(MemoryStore(), "memory:///")

    async def fill(manifest):
        for shard in manifest.shards:
            await copy.put_blob(await objects.get_blob(shard.digest))
        return copy

    return fill


def cached(tmp_path):
    return sorted((tmp_path / "cache" / "shards").iterdir())


async def test_shards_of_a_bucket_are_cached_and_the_cache_is_bounded(new_versions, trainer, engine, bucket, tmp_path):
    for step in range(10):
        store = await bucket(await trainer.publish(step))
        await new_versions(store).load(engine, "worker-a", step)
    assert len(cached(tmp_path)) == 8
    assert trainer.published[9].shards[0].digest.removeprefix("sha256:") in {path.name for path in cached(tmp_path)}


async def test_a_cached_shard_that_rotted_is_fetched_again(new_versions, trainer, engine, bucket, tmp_path):
    manifest = await trainer.publish(0)
    versions = new_versions(await bucket(manifest))
    await versions.load(engine, "worker-a", 0)
    (shard,) = cached(tmp_path)
    rotten = bytearray(shard.read_bytes())
    rotten[-1] ^= 0x40
    shard.write_bytes(rotten)
    with pytest.raises(AttestationError):
        await versions.load(engine, "worker-a", 0)
    assert await versions.load(engine, "worker-a", 0) == manifest.digest
