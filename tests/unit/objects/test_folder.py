import asyncio
import json

import pytest

from gradbus.errors import CorruptRecordError, ObjectMissingError, SettingsError
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore, materialise


@pytest.fixture
def store(tmp_path):
    return ObjectStore.open(f"file://{tmp_path}/objects")


async def test_files_lie_in_a_folder_named_after_them(store, tmp_path):
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


async def test_many_at_once_end_in_one_whole_folder(store, tmp_path):
    files = {f"file-{n}": await store.put_blob(f"{n}".encode() * 1000) for n in range(8)}
    folders = await asyncio.gather(*(materialise(store, files, tmp_path / "cache") for _ in range(6)))
    assert len(set(folders)) == 1
    assert list((tmp_path / "cache").iterdir()) == [folders[0]]
    assert sorted(path.name for path in folders[0].iterdir()) == sorted(files)
