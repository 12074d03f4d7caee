"""What the trainer tells while object storage refuses its writes."""

import asyncio

from gradbus.objects import ObjectStore
from gradbus_trainer.versions import object_storage
from gradbus_trainer.versions.object_storage import storage_trouble_told, until_stored


async def test_a_folder_that_takes_no_writes_is_named_until_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr(object_storage, "_RETRY_SECONDS", 0.01)
    objects = ObjectStore.open(f"file://{tmp_path}/objects")
    (tmp_path / "objects/blobs").write_bytes(b"in the way")  # refuses root too, whom permissions do not
    said = []

    def tell(trouble):
        said.append(trouble)
        if len(said) == 2:
            (tmp_path / "objects/blobs").unlink()

    with storage_trouble_told(tell):
        storing = asyncio.create_task(until_stored(lambda: objects.put_blob(b"weights"), "version 3 of run-1"))
    async with asyncio.timeout(60):
        digest = await storing
    assert await objects.get_blob(digest) == b"weights"
    assert said[0].startswith(f"version 3 of run-1 waits to be stored: object storage file://{tmp_path}/objects failed")
    assert "check that it can be written to and has room" in said[0]
    assert said[-1] == ""


async def test_of_storage_that_answers_nothing_is_told(tmp_path):
    said = []
    with storage_trouble_told(said.append):
        await until_stored(lambda: ObjectStore.open(f"file://{tmp_path}/objects").put_blob(b"weights"), "version 3 of run-1")
    assert said == []
