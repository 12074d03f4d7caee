"""The init job that prepares the stores, on real ones."""

import pytest
from moto.server import ThreadedMotoServer
from redis.asyncio import Redis

from gradbus.buffer import BufferSettings, open_buffer
from gradbus.deploy.stores import prepare_stores
from gradbus.errors import SettingsError
from gradbus.experience import ExperienceLog
from gradbus.ids import new_run_id
from gradbus.process import ProcessSettings
from gradbus.v1.group_pb2 import LogEntry

PAIR = {"access_key_id": "a", "secret_access_key": "b"}


@pytest.fixture
def s3(monkeypatch):
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {"ENDPOINT_URL": f"http://{host}:{port}", "ALLOW_HTTP": "true", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    yield
    server.stop()


async def test_functions_are_loaded_and_the_bucket_is_made_and_a_second_time_changes_nothing(s3, buffer_url):
    await _flush(buffer_url)
    settings = ProcessSettings(buffer_url=buffer_url, objects_url="s3://made-by-init", objects_credentials=PAIR)
    for _ in range(2):
        await prepare_stores(settings)
        store = settings.open_objects()
        assert await store.get_blob(await store.put_blob(b"content")) == b"content"
    client = open_buffer(BufferSettings(buffer_url))
    assert await ExperienceLog(client, new_run_id()).append(1, {0: LogEntry(index=0)}) == [0]
    await client.aclose()


async def test_a_folder_needs_no_bucket(buffer_url, object_url):
    await prepare_stores(ProcessSettings(buffer_url=buffer_url, objects_url=object_url))


async def test_a_buffer_that_is_away_is_named():
    with pytest.raises(SettingsError, match=r"redis://127\.0\.0\.1:1/0 does not load the functions"):
        await prepare_stores(ProcessSettings(buffer_url="redis://127.0.0.1:1/0"))


async def test_object_storage_that_is_away_is_named(buffer_url, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    settings = ProcessSettings(buffer_url=buffer_url, objects_url="s3://bucket", objects_credentials=PAIR)
    with pytest.raises(SettingsError, match="s3://bucket does not answer"):
        await prepare_stores(settings)


async def test_a_refused_bucket_says_what_the_server_said(s3, buffer_url):
    settings = ProcessSettings(buffer_url=buffer_url, objects_url="s3://x", objects_credentials=PAIR)
    with pytest.raises(SettingsError, match="refuses the bucket"):
        await prepare_stores(settings)


async def _flush(url):
    client = Redis.from_url(url)
    await client.function_flush()
    await client.aclose()
