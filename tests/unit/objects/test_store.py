import asyncio
import io
import os
import subprocess
import sys
import time

import pytest

from gradbus.errors import ObjectMissingError, SettingsError, StorageError
from gradbus.ids import digest_of, digest_of_file
from gradbus.objects import ObjectStore


@pytest.mark.parametrize("url", ["file://relative/x", "file:///", "http://host/x", "/tmp/x", "s3://", ""])
def test_a_url_that_names_no_store_is_refused(url):
    with pytest.raises(SettingsError, match="give"):
        ObjectStore.open(url)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SettingsError, match="GRADBUS_OBJECTS_URL"):
        ObjectStore.open(f"file://{tmp_path}/file/objects")


async def test_a_folder_store_shows_a_blobs_file(tmp_path):
    store = ObjectStore.open(f"file://{tmp_path}/objects")
    digest = await store.put_blob(b"weights")
    path = store.local_path(digest)
    assert path is not None
    assert path.read_bytes() == b"weights"


async def test_a_store_that_refuses_is_not_a_missing_object(tmp_path):
    store = ObjectStore.open(f"file://{tmp_path}/objects")
    (tmp_path / "objects" / "runs").write_text("a file where a folder belongs")
    with pytest.raises(StorageError, match="try again"):
        await store.put("runs/a/x", b"x")


async def test_a_url_with_escapes_names_the_folder_it_means(tmp_path):
    store = ObjectStore.open(f"file://{tmp_path}/with%20space")
    await store.put("a", b"x")
    assert (tmp_path / "with space" / "a").read_bytes() == b"x"


async def test_a_blob_is_read_in_pieces_as_they_are_asked_for(tmp_path):
    store = ObjectStore.open(f"file://{tmp_path}/objects")
    content = os.urandom(10 << 20)
    size, pieces = await store.open_blob(await store.put_blob(content))
    found = [piece async for piece in pieces]
    assert size == len(content)
    assert b"".join(found) == content
    assert max(map(len, found)) <= 2 << 20
    with pytest.raises(ObjectMissingError):
        await store.open_blob(digest_of(b"another"))


UPLOAD = """
import os, signal, sys
import obstore
from obstore.store import LocalStore

def pieces():
    for _ in range(4):
        yield bytes(1 << 20)
    os.kill(os.getpid(), signal.SIGKILL)

obstore.put(LocalStore(prefix=sys.argv[1]), "blobs/half", pieces(), chunk_size=1 << 20)
"""


async def test_what_a_process_that_was_killed_in_an_upload_left_is_removed_when_it_is_old(tmp_path):
    store = ObjectStore.open(f"file://{tmp_path}/objects")
    kept = await store.put_blob(b"whole")
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", UPLOAD, str(tmp_path / "objects")], check=False)
    blobs = store.local_path(kept).parent
    (left,) = set(blobs.iterdir()) - {store.local_path(kept)}
    await store.remove_partial_files()
    assert left.exists(), "somebody may be writing it"
    hours_ago = time.time() - 2 * 3600
    for path in blobs.iterdir():
        os.utime(path, (hours_ago, hours_ago))
    await store.remove_partial_files()
    assert list(blobs.iterdir()) == [store.local_path(kept)]


async def test_a_folder_without_blobs_has_no_partial_files(tmp_path):
    await ObjectStore.open(f"file://{tmp_path}/objects").remove_partial_files()


LARGE_UPLOAD = """
import asyncio, sys, tempfile
from gradbus.objects import ObjectStore

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024

async def main():
    store = ObjectStore.open(sys.argv[1])
    before = peak()
    with tempfile.SpooledTemporaryFile(max_size=1024) as file:
        for _ in range(512):
            file.write(b"x" * (1 << 20))
        digest = await store.put_open_file(file, 512 << 20)
    print(peak() - before, digest)

asyncio.run(main())
"""


def test_an_open_file_is_stored_whatever_its_size_in_little_memory(tmp_path):
    line = [sys.executable, "-c", LARGE_UPLOAD, tmp_path.as_uri()]
    done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=120)
    grown, digest = done.stdout.split()
    assert int(grown) < 200, "MiB, mapped pages included"
    assert digest == digest_of_file(ObjectStore.open(tmp_path.as_uri()).local_path(digest))


async def test_an_open_file_is_stored_from_its_beginning_and_once(tmp_path):
    store = ObjectStore.open(tmp_path.as_uri())
    for _ in range(2):
        with io.BytesIO(b"content") as file:
            file.seek(3)
            digest = await store.put_open_file(file, 7)
        assert await store.get_blob(digest) == b"content"


async def test_a_small_object_that_cannot_be_stored_leaves_no_part_of_it(tmp_path):
    store = ObjectStore.open(f"file://{tmp_path}/objects")
    (tmp_path / "objects" / "runs" / "a").mkdir(parents=True)
    with pytest.raises(StorageError, match="runs/a"):
        await store.put("runs/a", b"x")
    assert [path.name for path in (tmp_path / "objects" / "runs").iterdir()] == ["a"]
