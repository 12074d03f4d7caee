"""What object storage alone tells of a run's versions."""

import pytest

from gradbus.experience.records import seal
from gradbus.objects import ObjectStore
from gradbus.run_files.paths import checkpoint_path, version_path
from gradbus.run_files.versions import read_digest, read_versions, remove_deleted, store_deleted
from gradbus.v1.weights_pb2 import CheckpointManifest, Shard, WeightManifest

RUN = "run-1"


@pytest.fixture
def objects(tmp_path):
    return ObjectStore.open(f"file://{tmp_path}/objects")


def version(step, term=1):
    return WeightManifest(run_id=RUN, step=step, term=term, digest=f"sha256:{step}-{term}", shards=[Shard(digest="d", tensors=["w"])])


async def put(objects, manifest):
    path = version_path(manifest) if isinstance(manifest, WeightManifest) else checkpoint_path(manifest)
    await objects.put(path, seal(manifest.SerializeToString()))


async def test_the_newest_term_of_each_step_counts_wherever_it_is_recorded(objects):
    for manifest in (version(3), version(4), version(4, term=2)):
        await put(objects, manifest)
    await store_deleted(objects, RUN, [version(1), version(0), version(3, term=2)])
    await put(objects, CheckpointManifest(run_id=RUN, step=5, term=2, weights=version(5, term=2), pinned=[version(2)]))
    await put(objects, CheckpointManifest(run_id=RUN, step=5, term=1, weights=version(5)))
    found = await read_versions(objects, RUN)
    terms = {step: int(digest.rpartition("-")[2]) for step, digest in found.digests.items()}
    assert terms == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2}
    assert {step: one.term for step, one in found.checkpoints.items()} == {5: 2}
    assert {step: await read_digest(objects, RUN, step) for step in range(6)} == found.digests
    assert await read_digest(objects, RUN, 6) is None


async def test_for_one_digest_only_what_may_name_it_is_read(objects, monkeypatch):
    for step in (1, 11, 21):
        await put(objects, version(step))
    for steps in (range(8), range(8, 16)):
        await store_deleted(objects, RUN, [version(step, term=2) for step in steps])
    asked, get = [], ObjectStore.get

    async def reading(objects, path):
        asked.append(path.removeprefix(f"runs/{RUN}/").rpartition("-")[0])
        return await get(objects, path)

    monkeypatch.setattr(ObjectStore, "get", reading)
    assert await read_digest(objects, RUN, 1) == "sha256:1-2"
    assert sorted(asked) == ["digests/0-7", "versions/1"]


async def test_a_deletion_that_was_cut_short_and_the_next_lose_no_digest(objects):
    await store_deleted(objects, RUN, [version(step) for step in range(6)])
    await store_deleted(objects, RUN, [version(0), version(5)])  # of the same steps, without those that are gone
    await store_deleted(objects, RUN, [])
    assert sorted((await read_versions(objects, RUN)).digests) == list(range(6))
    assert len(await objects.list(f"runs/{RUN}/digests")) == 2
    await remove_deleted(objects, RUN)
    assert await objects.list(f"runs/{RUN}") == []


async def test_a_torn_manifest_is_left_out(objects):
    await put(objects, version(1))
    await objects.put(version_path(version(2)), b"torn")
    assert list((await read_versions(objects, RUN)).digests) == [1]


async def test_a_run_without_manifests_has_no_versions(objects):
    found = await read_versions(objects, RUN)
    assert (dict(found.digests), dict(found.checkpoints)) == ({}, {})
