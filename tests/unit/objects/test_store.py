from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from gradbus.errors import SettingsError, StorageError
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


@pytest.fixture
def server_without_ranges(tmp_path, monkeypatch):
    """Serves `tmp_path` as the standard library does: whole files, whatever range was asked for."""
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for name, value in {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "ALLOW_HTTP": "true", "REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield tmp_path
        server.shutdown()


async def test_a_part_is_cut_out_where_the_server_knows_no_ranges(server_without_ranges):
    digest = await ObjectStore.open(f"file://{server_without_ranges}/bucket").put_blob(b"0123456789")
    store = ObjectStore.open("s3://bucket", {"access_key_id": "a", "secret_access_key": "b"})
    assert await store.get_blob_part(digest, 3, 7) == b"3456"
