"""A version's files come here whatever is missing or damaged, as long as something gives them; and never with other bytes."""

import errno
import os
from pathlib import Path

import pytest
import torch
from obstore.store import MemoryStore

from gradbus.errors import CorruptRecordError, DiskError, ObjectMissingError
from gradbus.objects import ObjectStore
from gradbus.objects.paths import blob_path
from gradbus.spec import WeightsSpec
from gradbus.v1.weights_pb2 import Shard, WeightManifest
from gradbus_rollout.weights import downloader
from gradbus_rollout.weights.cache import KEPT, ShardCache
from gradbus_rollout.weights.version_files import VersionFiles
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch
from gradbus_trainer.versions.writer import VersionWriter

DELTAS = WeightsSpec(transport="delta", dtype="bf16", anchor_every=4)
LAST = 6
ANCHOR = 4


@pytest.fixture
def exports(tmp_path):
    scratch = Scratch(tmp_path / "scratch")
    random = torch.Generator().manual_seed(0)
    weights, found = torch.randn(8000, generator=random), []
    for step in range(LAST + 1):
        found.append(export_version(step, LazyTensors.of({"w": weights, "b": torch.ones(3)}), False, scratch, torch.bfloat16))
        weights = weights + 0.3 * (torch.rand(8000, generator=random) < 0.02)
    return found


@pytest.fixture
def contents(exports):
    """Their bytes; a file is removed once no later version needs it."""
    return [export.file.path.read_bytes() for export in exports]


@pytest.fixture(params=["bucket", "folder"])
def objects(request, tmp_path):
    return ObjectStore(MemoryStore(), "memory:///") if request.param == "bucket" else ObjectStore.open(f"file://{tmp_path}/objects")


@pytest.fixture
async def manifests(objects, exports, contents):
    """Versions 0 to 6; 0 and 4 are whole."""
    writer = VersionWriter(objects, "run", 1, DELTAS)
    manifests = []
    for export in exports:
        manifests.append(await writer.store(export, whole=False))
        writer.advance(export, manifests[-1])
    return manifests


@pytest.fixture
def new_worker(objects, tmp_path):
    def make(name="one"):
        return VersionFiles(objects, tmp_path / name)

    return make


async def content(worker, manifest):
    (file,) = await worker.files(manifest)
    return file.read_bytes()


def chain(manifest):
    return manifest.shards[0].chain


async def damage(objects, digest):
    data = bytearray(await objects.get_blob(digest))
    data[-1] ^= 1
    await objects.put(blob_path(digest), bytes(data))


async def test_a_worker_that_follows_gets_every_file_to_the_byte(manifests, contents, new_worker):
    worker = new_worker()
    for manifest, expected in zip(manifests, contents, strict=True):
        assert await content(worker, manifest) == expected


async def test_a_worker_that_holds_the_version_before_needs_the_delta_alone(manifests, contents, objects, new_worker):
    worker = new_worker()
    await worker.files(manifests[LAST - 1])
    for digest in (manifests[ANCHOR].shards[0].digest, chain(manifests[LAST])[0].digest):
        await objects.delete_blob(digest)
    assert await content(worker, manifests[LAST]) == contents[LAST]


async def test_a_worker_takes_up_the_chain_where_it_stands(manifests, contents, objects, new_worker):
    worker = new_worker()
    await worker.files(manifests[1])
    await objects.delete_blob(manifests[0].shards[0].digest)
    await objects.delete_blob(chain(manifests[3])[0].digest)
    assert await content(worker, manifests[3]) == contents[3]


@pytest.mark.parametrize("step", [0, 3, ANCHOR, LAST])
async def test_a_worker_that_comes_late_catches_up_from_the_store_alone(manifests, contents, new_worker, step):
    assert await content(new_worker(), manifests[step]) == contents[step]


async def test_a_damaged_delta_is_passed_by_where_the_whole_file_is_stored(manifests, contents, objects, new_worker):
    worker = new_worker()
    await worker.files(manifests[3])
    await damage(objects, chain(manifests[ANCHOR])[-1].digest)
    assert await content(worker, manifests[ANCHOR]) == contents[ANCHOR]


@pytest.mark.parametrize("rest", [None, slice(0, 0), slice(0, 500), slice(1, None)])
async def test_a_base_that_is_gone_or_rotten_here_is_replaced_by_the_anchor(manifests, contents, new_worker, rest):
    worker = new_worker()
    (base,) = await worker.files(manifests[2])
    content_before = base.read_bytes()
    base.unlink()
    if rest is not None:
        base.write_bytes(content_before[rest])
    assert await content(worker, manifests[3]) == contents[3]
    assert not base.exists(), "or it would spoil every delta to come"


async def test_what_is_damaged_in_the_store_and_nowhere_else_is_told(manifests, objects, new_worker):
    worker = new_worker()
    await worker.files(manifests[LAST - 1])
    await damage(objects, chain(manifests[LAST])[-1].digest)
    with pytest.raises(CorruptRecordError, match="is damaged"):
        await worker.files(manifests[LAST])


@pytest.mark.parametrize("missing", ["anchor", "delta"])
async def test_what_nothing_gives_is_missing(manifests, objects, new_worker, missing):
    link = chain(manifests[LAST])[0]
    await objects.delete_blob(link.base_digest if missing == "anchor" else link.digest)
    with pytest.raises(ObjectMissingError, match="ask for a newer version"):
        await new_worker().files(manifests[LAST])


async def test_a_file_that_is_larger_than_a_part_is_read_in_parts(manifests, contents, new_worker, monkeypatch):
    monkeypatch.setattr(downloader, "PART_BYTES", 1000)
    assert await content(new_worker(), manifests[LAST]) == contents[LAST]


async def test_a_file_that_a_server_gives_no_parts_of_comes_at_once(exports, contents, rclone_server, tmp_path, monkeypatch):
    monkeypatch.setattr(downloader, "PART_BYTES", 1000)
    objects = rclone_server.store(monkeypatch)
    manifest = await VersionWriter(objects, "run", 1).store(exports[0], whole=True)
    assert await content(VersionFiles(objects, tmp_path / "one"), manifest) == contents[0]
    assert [path.name for path in (tmp_path / "one").iterdir()] == [manifest.shards[0].digest.removeprefix("sha256:")]


@pytest.mark.parametrize("part_bytes", [1000, 1 << 20], ids=["in parts", "at once"])
async def test_a_full_disk_is_told_with_what_to_do_and_nothing_is_left(
    manifests, contents, new_worker, tmp_path, monkeypatch, no_file_over, part_bytes
):
    monkeypatch.setattr(downloader, "PART_BYTES", part_bytes)
    worker, size = new_worker(), len(contents[LAST])
    with no_file_over(size - 10), pytest.raises(DiskError, match=r"cannot write a version's weights .*has room, or set GRADBUS_CACHE_DIR"):
        await worker.files(manifests[LAST])
    assert list((tmp_path / "one").iterdir()) == []
    assert await content(worker, manifests[LAST]) == contents[LAST]


@pytest.mark.parametrize(("room", "steps"), [(2, range(LAST + 1)), (1, (0, ANCHOR))], ids=["a version and its base", "a version"])
async def test_a_disk_that_older_versions_fill_has_room_for_the_next(manifests, contents, new_worker, tmp_path, monkeypatch, room, steps):
    folder, write = tmp_path / "one", Path.write_bytes

    def write_if_there_is_room(path, data):
        if path.parent == folder and sum(file.stat().st_size for file in folder.iterdir()) + len(data) > room * len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_if_there_is_room)
    worker = new_worker()
    for step in steps:
        assert await content(worker, manifests[step]) == contents[step]


async def test_several_shards_come_in_their_order(objects, new_worker):
    contents = [bytes([number]) * 1000 for number in range(20)]
    shards = [Shard(digest=await objects.put_blob(data), size_bytes=len(data)) for data in contents]
    files = await new_worker().files(WeightManifest(shards=shards))
    assert [file.read_bytes() for file in files] == contents


async def test_what_a_broadcast_left_in_the_cache_spares_object_storage(manifests, contents, objects, new_worker, tmp_path):
    await ShardCache(tmp_path / "one").keep(manifests[3].shards[0].digest, contents[3])
    for digest in (manifests[3].shards[0].digest, chain(manifests[3])[0].digest):
        await objects.delete_blob(digest)
    worker = new_worker()
    assert await content(worker, manifests[3]) == contents[3]
    assert await content(worker, manifests[3]) == contents[3], "what is here is not asked for"


async def test_other_bytes_never_enter_the_cache_and_the_version_comes_from_object_storage(manifests, contents, new_worker, tmp_path):
    with pytest.raises(CorruptRecordError, match="it is fetched by another route"):
        await ShardCache(tmp_path / "one").keep(manifests[3].shards[0].digest, b"other bytes")
    assert await content(new_worker(), manifests[3]) == contents[3]


def test_a_file_that_every_version_shares_stays_in_the_cache(tmp_path, objects):
    files = VersionFiles(objects, tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    for number in range(3 * KEPT):
        for path in (shared := tmp_path / "cache" / "shared", own := tmp_path / "cache" / str(number)):
            if not path.exists():
                path.touch()
                os.utime(path, (number, number))
        files.loaded([own, shared, tmp_path / "elsewhere"])
    assert shared.exists()
    assert len(list((tmp_path / "cache").iterdir())) == KEPT


def test_only_the_newest_files_are_kept(tmp_path):
    for number in range(5):
        (tmp_path / str(number)).touch()
        os.utime(tmp_path / str(number), (number, number))
    ShardCache(tmp_path).evict(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]
    ShardCache(tmp_path / "missing").evict(2)


def test_memory_for_a_rebuilt_file_needs_no_large_pages(monkeypatch):
    monkeypatch.delattr(downloader.mmap, "MADV_HUGEPAGE", raising=False)
    memory = downloader._memory(10)
    memory[:] = b"0123456789"
    assert bytes(memory) == b"0123456789"
