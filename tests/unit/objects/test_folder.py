import asyncio
import json
import os
import tracemalloc

import pytest

from gradbus.errors import CorruptRecordError, DiskError, ObjectMissingError, SettingsError
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore, materialise


@pytest.fixture
def store(tmp_path):
    return ObjectStore.open(f"file://{tmp_path}/objects")


async def test_files_are_in_a_folder_named_after_them(store, tmp_path):
    files = {"tokenizer.json": await store.put_blob(b"{}"), "model.safetensors": await store.put_blob(b"weights")}
    folder = await materialise(store, files, tmp_path / "cache")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"tokenizer.json": b"{}", "model.safetensors": b"weights"}
    again = await materialise(store, dict(reversed(files.items())), tmp_path / "cache")
    assert again == folder


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "processor_config.json"])
async def test_code_that_a_configuration_names_is_stripped_however_it_is_spelled(store, tmp_path, name):
    config = b'{"model_type": "llama", "auto\\u005fmap": {"AutoModel": "evil.Model"}, "deep": [{"auto_map": "evil"}]}'
    folder = await materialise(store, {name: await store.put_blob(config)}, tmp_path / "cache")
    assert json.loads((folder / name).read_bytes()) == {"model_type": "llama", "deep": [{}]}


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", ".hidden", "", "..", "a\\b"])
async def test_unsafe_names_are_refused_and_leave_nothing(store, tmp_path, name):
    with pytest.raises(SettingsError, match="not safe"):
        await materialise(store, {name: await store.put_blob(b"x")}, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


async def test_a_failed_attempt_leaves_no_folder(store, tmp_path):
    files = {"a": await store.put_blob(b"x"), "b": digest_of(b"never stored")}
    with pytest.raises(ObjectMissingError):
        await materialise(store, files, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


async def test_a_corrupt_file_is_not_taken(store, tmp_path):
    digest = await store.put_blob(b"weights")
    store.local_path(digest).write_bytes(b"weightz")
    with pytest.raises(CorruptRecordError, match=digest):
        await materialise(store, {"a": digest}, tmp_path / "cache")


async def test_a_large_file_does_not_go_through_memory(store, tmp_path):
    weights = bytes(64 << 20)
    files = {"model.safetensors": await store.put_blob(weights)}
    tracemalloc.start()
    folder = await materialise(store, files, tmp_path / "cache")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (folder / "model.safetensors").read_bytes() == weights
    assert peak < 8 << 20


async def test_many_at_once_end_in_one_whole_folder(store, tmp_path):
    files = {f"file-{n}": await store.put_blob(f"{n}".encode() * 1000) for n in range(8)}
    folders = await asyncio.gather(*(materialise(store, files, tmp_path / "cache") for _ in range(6)))
    assert len(set(folders)) == 1
    assert list((tmp_path / "cache").iterdir()) == [folders[0]]
    assert sorted(path.name for path in folders[0].iterdir()) == sorted(files)


async def test_a_folder_is_whole_after_a_power_cut(store, tmp_path, monkeypatch):
    files = {name: await store.put_blob(name.encode()) for name in ("config.json.txt", "model.safetensors")}
    synced, sync, replace = set(), os.fsync, os.replace

    def note(descriptor):
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def look(draft, target):
        assert {path.stat().st_ino for path in (draft, *draft.iterdir())} <= synced, "a name may outlive what it names"
        replace(draft, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", look)
    assert len(list((await materialise(store, files, tmp_path / "cache")).iterdir())) == 2


async def test_what_a_killed_process_left_is_removed_and_what_another_is_at_stays(store, tmp_path, monkeypatch):
    cache, take = tmp_path / "cache", store.blob_file
    asked, may_take = asyncio.Event(), asyncio.Event()
    slow, quick = await store.put_blob(b"slow"), await store.put_blob(b"quick")
    left = cache / ".partial-of-a-killed-one"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half of it")

    async def take_slowly(digest, spare):
        if digest == slow:
            asked.set()
            await may_take.wait()
        return await take(digest, spare)

    monkeypatch.setattr(store, "blob_file", take_slowly)
    task = asyncio.create_task(materialise(store, {"a": slow}, cache))
    await asked.wait()
    folder = await materialise(store, {"a": quick}, cache)
    assert not left.exists()
    assert len(list(cache.iterdir())) == 2, "one is done, one under way"
    may_take.set()
    folders = {folder, await task}
    assert set(cache.iterdir()) == folders


async def test_a_full_disk_is_an_error_with_advice_and_nothing_is_left(store, tmp_path, no_file_over):
    files = {"model.safetensors": await store.put_blob(bytes(5000))}
    with no_file_over(1000), pytest.raises(DiskError, match=r"cannot write a model into .*has room, or set GRADBUS_CACHE_DIR"):
        await materialise(store, files, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    assert (await materialise(store, files, tmp_path / "cache")).is_dir()


async def test_a_cache_folder_that_cannot_be_written_is_reported_without_its_path(store, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=r"into the cache folder \(Not a directory\).*set GRADBUS_CACHE_DIR"):
        await materialise(store, {"a": await store.put_blob(b"x")}, tmp_path / "file" / "below")
