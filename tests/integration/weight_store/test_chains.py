"""Versions that are stored as deltas: no blob that they need is deleted or missing, and a checkpoint is never stored so."""

import grpc
import pytest

from gradbus.bus import Buckets
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus.v1.weights_pb2 import WeightManifest

from .test_checkpoints import until
from .test_versions import status_of

REFUSED = grpc.StatusCode.INVALID_ARGUMENT
MISSING = grpc.StatusCode.NOT_FOUND


@pytest.fixture
def store_process(shared_store):
    return shared_store


@pytest.fixture
def object_url(shared_store):
    return shared_store.object_url


@pytest.fixture
def objects(object_url):
    return ObjectStore.open(object_url)


@pytest.fixture
def publish_chain(trainer):
    """Version `first` whole, and those up to `last` by deltas; the manifests."""

    async def publish(first, last):
        await trainer.publish(first)
        found = [await trainer.manifest(first)]
        for step in range(first + 1, last + 1):
            chain = found[-1].shards[0].chain
            found.append(await trainer.delta(step, step - 1, chain))
            await trainer.publish_manifest(found[-1])
        return found

    return publish


def anchor(manifest):
    return manifest.shards[0].chain[0].base_digest


async def test_the_chain_is_in_the_manifest_and_in_the_head(trainer, publish_chain, bus, run_id):
    manifests = await publish_chain(0, 3)
    assert await trainer.version(3) == manifests[3]
    head = WeightManifest.FromString((await (await bus.bucket(Buckets.HEADS)).get(f"{run_id}.version")).value)
    found = head.shards[0]
    del manifests[3].shards[0].tensors[:]
    assert found == manifests[3].shards[0]


@pytest.mark.parametrize("missing", ["anchor", "first delta", "last delta"])
async def test_a_version_is_refused_while_its_chain_is_not_stored(trainer, publish_chain, objects, missing):
    manifests = await publish_chain(0, 1)
    manifest = await trainer.delta(2, 1, manifests[1].shards[0].chain)
    chain = manifest.shards[0].chain
    digest = {"anchor": chain[0].base_digest, "first delta": chain[0].digest, "last delta": chain[1].digest}[missing]
    await objects.delete_blob(digest)
    assert await status_of(trainer.publish_manifest(manifest)) == MISSING


async def test_a_whole_version_needs_no_chain_and_a_delta_does(trainer, publish_chain, objects):
    await publish_chain(0, 0)
    manifest = await trainer.delta(1, 0)
    await objects.put_blob(f"weights {trainer.run_id} 1".encode())
    await objects.delete_blob(manifest.shards[0].chain[0].digest)
    manifest.shards[0].delta_only = False
    await trainer.publish_manifest(manifest)
    alone = await trainer.delta(2, 1)
    del alone.shards[0].chain[:]
    assert await status_of(trainer.publish_manifest(alone)) == REFUSED
    elsewhere = await trainer.delta(2, 1)
    elsewhere.shards[0].chain[0].digest = "../../etc/passwd"
    assert await status_of(trainer.publish_manifest(elsewhere)) == REFUSED


async def test_a_replay_that_travels_another_way_is_the_same_version(trainer, trainer_of, publish_chain, run_id):
    manifests = await publish_chain(0, 1)
    second = trainer_of(run_id, term=2)
    await second.open()
    assert not (await second.publish(1)).diverged
    assert await second.version(1) == manifests[1]


async def test_a_checkpoint_of_a_version_that_is_not_whole_is_refused(trainer, publish_chain):
    manifests = await publish_chain(0, 2)
    checkpoint = await trainer.checkpoint(2)
    checkpoint.weights.CopyFrom(manifests[2])
    assert await status_of(trainer.commit_manifest(checkpoint)) == REFUSED


async def test_a_kept_version_keeps_its_chain_though_the_versions_before_are_deleted(trainer, publish_chain, write_spec, objects):
    await write_spec(trainer.run_id, keep=1, max_staleness=1)
    manifests = await publish_chain(0, 3)
    await trainer.publish(4)
    checkpoint = await trainer.checkpoint(4)
    checkpoint.pinned.append(manifests[3])
    trainer.previous = (await trainer.commit_manifest(checkpoint)).digest

    async def swept():
        return len(await objects.list(f"runs/{trainer.run_id}/versions")) == 2

    await until(swept)
    assert [one.step for one in (await trainer.listed()).manifests] == [3, 4]
    chain = manifests[3].shards[0].chain
    assert all([await objects.has_blob(digest) for digest in (anchor(manifests[3]), *(link.digest for link in chain))])
    for step in (5, 6):
        await trainer.publish(step)
    await trainer.commit(6, pinned=[5])
    blobs = {anchor(manifests[3]), *(link.digest for link in chain)}

    async def all_deleted():
        return not any([await objects.has_blob(digest) for digest in blobs])

    await until(all_deleted)
    assert [one.step for one in (await trainer.listed()).manifests] == [5, 6]


async def test_a_pinned_version_outlives_a_power_cut_that_takes_the_manifests(trainer, publish_chain, objects, store_process):
    manifests = await publish_chain(0, 1)
    await trainer.publish(2)
    checkpoint = await trainer.checkpoint(2)
    checkpoint.pinned.append(manifests[1])
    await trainer.commit_manifest(checkpoint)
    store_process.kill()
    for path in await objects.list(f"runs/{trainer.run_id}/versions"):
        await objects.put(path, b"")
    store_process.start()
    assert await trainer.version(1) == manifests[1]


async def test_a_checkpoint_that_pins_a_chain_which_is_not_stored_is_refused(trainer, publish_chain, objects):
    manifests = await publish_chain(0, 1)
    await trainer.publish(2)
    checkpoint = await trainer.checkpoint(2)
    checkpoint.pinned.append(manifests[1])
    await objects.delete_blob(digest_of(f"delta {trainer.run_id} 0 1".encode()))
    assert await status_of(trainer.commit_manifest(checkpoint)) == MISSING
