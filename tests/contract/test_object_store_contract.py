"""What every object store promises, asked of a folder and of three S3 servers."""

import asyncio
import errno
import os

import pytest

from gradbus.errors import CorruptRecordError, ObjectMissingError, SettingsError, StorageError
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus.objects import store as objects_store
from gradbus.objects.paths import blob_path
from gradbus_gateway.intake.model.outline import write_outline

ABSENT = digest_of(b"never stored")


@pytest.fixture(params=["folder", "moto", "rclone", "seaweed"])
def store(request, tmp_path, monkeypatch):
    if request.param == "folder":
        return ObjectStore.open(f"file://{tmp_path}/objects")
    return request.getfixturevalue(f"{request.param}_server").store(monkeypatch)


async def test_a_blob_comes_back_under_its_digest(store):
    digest = await store.put_blob(b"weights")
    assert digest == digest_of(b"weights")
    assert await store.has_blob(digest)
    assert await store.get_blob(digest) == b"weights"


async def test_blobs_are_looked_for_together(store):
    digests = [await store.put_blob(data) for data in (b"one", b"two")]
    assert await store.has_blobs(digests)
    assert await store.has_blobs([])
    assert not await store.has_blobs([*digests, ABSENT])


async def test_storing_a_blob_twice_keeps_one(store):
    contents = [b"weights %d" % number for number in range(50)]
    for data in contents:
        await asyncio.gather(*(store.put_blob(data) for _ in range(5)))
    assert await store.list("blobs") == sorted(blob_path(digest_of(data)) for data in contents)


async def test_an_empty_blob_is_a_blob(store):
    digest = await store.put_blob(b"")
    assert await store.get_blob(digest) == b""


async def test_a_missing_blob_is_named_with_its_store(store):
    with pytest.raises(ObjectMissingError, match=ABSENT) as caught:
        await store.get_blob(ABSENT)
    assert store.url in str(caught.value)
    assert not await store.has_blob(ABSENT)


async def test_a_blob_whose_bytes_changed_is_refused(store):
    digest = await store.put_blob(b"weights")
    await store.put(blob_path(digest), b"weightz")
    with pytest.raises(CorruptRecordError, match=digest):
        await store.get_blob(digest)


async def test_a_server_that_answers_ranges_wrongly_gives_no_part(rclone_server, monkeypatch):
    store = rclone_server.store(monkeypatch)
    digest = await store.put_blob(b"weights")
    with pytest.raises(StorageError, match="non-partial response"):
        await store.get_blob_part(digest, 2, 5)


@pytest.mark.parametrize("store", ["folder", "moto", "seaweed"], indirect=True)
async def test_a_blob_is_read_in_parts(store):
    digest = await store.put_blob(b"weights")
    assert await store.get_blob_part(digest, 2, 5) == b"igh"
    assert await store.get_blob_part(digest, 0, 7) == b"weights"
    with pytest.raises(ObjectMissingError, match=ABSENT):
        await store.get_blob_part(ABSENT, 0, 1)
    with pytest.raises((CorruptRecordError, StorageError)):
        await store.get_blob_part(digest, 5, 9)


@pytest.mark.parametrize("tensors", [100, 3 << 20], ids=["small", "of several pieces"])
async def test_of_a_models_weights_the_header_is_read_from_every_store(store, tmp_path, tensors):
    header = b'{"__metadata__":{}}'
    start = len(header).to_bytes(8, "little") + header
    files = {"model.safetensors": await store.put_blob(start + b"x" * tensors), "empty.safetensors": await store.put_blob(b"")}
    assert await write_outline(store, files, tmp_path) == files
    assert (tmp_path / "model.safetensors").read_bytes() == start + bytes(tensors)
    assert (tmp_path / "empty.safetensors").read_bytes() == b""


async def test_a_torn_blob_is_written_again(store):
    digest = await store.put_blob(b"weights")
    await store.put(blob_path(digest), b"")
    await store.put_blob(b"weights")
    assert await store.get_blob(digest) == b"weights"


async def test_a_deleted_blob_is_written_again(store):
    digest = await store.put_blob(b"weights")
    await store.put_blob(b"weights")
    await store.delete_blob(digest)
    await store.put_blob(b"weights")
    assert await store.get_blob(digest) == b"weights"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 50_000)  # more than one part
    return path


async def test_a_file_is_stored_as_its_bytes_are(store, file, monkeypatch):
    monkeypatch.setattr(objects_store, "_PART_BYTES", 5 << 20)
    digest = await store.put_file(file)
    assert digest == digest_of(file.read_bytes())
    assert await store.get_blob(digest) == file.read_bytes()
    assert await store.put_file(file) == digest
    assert await store.list("blobs") == [blob_path(digest)]
    await store.make_durable([digest])


async def test_a_stored_file_outlives_the_one_it_came_from(store, file):
    content = file.read_bytes()
    digest = await store.put_file(file)
    file.unlink()
    assert await store.get_blob(digest) == content


async def test_a_torn_blob_is_written_again_from_a_file(store, file):
    digest = await store.put_file(file)
    await store.put(blob_path(digest), b"")
    await store.put_file(file)
    assert await store.get_blob(digest) == file.read_bytes()
    assert await store.list("blobs") == [blob_path(digest)]


async def test_a_blob_is_read_as_a_file(store, file, tmp_path):
    digest = await store.put_file(file)
    spare = tmp_path / "spare"
    found = await store.blob_file(digest, spare)
    assert found.read_bytes() == file.read_bytes()
    assert found in {spare, store.local_path(digest)}
    with pytest.raises(ObjectMissingError, match=ABSENT):
        await store.blob_file(ABSENT, spare)
    await store.put(blob_path(digest), b"weights")
    with pytest.raises(CorruptRecordError, match=digest):
        await store.blob_file(digest, spare)


async def test_a_file_that_is_not_there_cannot_be_stored(store, tmp_path):
    with pytest.raises(ObjectMissingError, match="absent"):
        await store.put_file(tmp_path / "absent")


def on_another_disk(source, target):
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)


@pytest.mark.parametrize("same_disk", [True, False])
async def test_a_folder_takes_a_file_without_a_copy_where_it_can(tmp_path, file, monkeypatch, same_disk):
    if not same_disk:
        monkeypatch.setattr(os, "link", on_another_disk)
    store = ObjectStore.open(f"file://{tmp_path}/objects")
    digest = await store.put_file(file)
    assert store.local_path(digest).samefile(file) is same_disk
    assert await store.get_blob(digest) == file.read_bytes()
    assert [path.name for path in store.local_path(digest).parent.iterdir()] == [store.local_path(digest).name]


async def test_durable_blobs_must_exist(store):
    digest = await store.put_blob(b"weights")
    await store.make_durable([digest])
    with pytest.raises(ObjectMissingError, match=ABSENT.removeprefix("sha256:")):
        await store.make_durable([digest, ABSENT])


async def test_objects_are_listed_below_their_prefix_alone(store):
    for path in ("runs/a/versions/2-1", "runs/a/versions/10-1", "runs/ab/versions/1-1", "runs/a/checkpoints/2-1"):
        await store.put(path, path.encode(), durable=True)
    assert await store.list("runs/a/versions") == ["runs/a/versions/10-1", "runs/a/versions/2-1"]
    assert await store.get("runs/ab/versions/1-1") == b"runs/ab/versions/1-1"
    assert await store.list("runs/nobody") == []
    assert await store.folders("runs") == ["a", "ab"]
    assert await store.folders("nothing") == []
    await store.delete("runs/ab/versions/1-1")
    assert [await store.has_any(folder) for folder in ("runs/a", "runs/ab", "runs/nobody")] == [True, False, False]


async def test_a_put_replaces_and_a_delete_may_be_repeated(store):
    await store.put("runs/a/x", b"one")
    await store.put("runs/a/x", b"two")
    assert await store.get("runs/a/x") == b"two"
    await store.delete("runs/a/x")
    await store.delete("runs/a/x")
    with pytest.raises(ObjectMissingError, match="runs/a/x"):
        await store.get("runs/a/x")


@pytest.mark.parametrize("path", ["../x", "runs/../x", "/etc/passwd", "runs//x", "runs/.hidden", "", "runs/a\n", "runs/a#1"])
async def test_unsafe_paths_are_refused(store, path):
    with pytest.raises(SettingsError, match="is not a path"):
        await store.put(path, b"x")


@pytest.mark.parametrize("digest", ["", "sha256:abc", "../../x", "sha256:" + "G" * 64])
async def test_what_is_no_digest_is_refused(store, digest):
    for method in (store.get_blob, store.has_blob, store.delete_blob):
        with pytest.raises(SettingsError, match="is not a digest"):
            await method(digest)
