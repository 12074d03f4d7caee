"""Connections to a NATS of the session, and one NATS a test that can be killed."""

import asyncio
import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.bus import Bus, BusSettings


class RestartableNats:
    """`start`, `kill` (-9) and `start` again: same address, same files."""

    def __init__(self, folder, port):
        self.port = port
        self.config = folder / "nats.conf"
        self.config.write_text(f'host: 127.0.0.1\nport: {self.port}\njetstream {{ store_dir: "{folder}/store", sync_interval: always }}\n')
        self.url = f"nats://127.0.0.1:{self.port}"

    def start(self):
        binary = shutil.which("nats-server", path=Path(sys.executable).parent) or shutil.which("nats-server")
        self.process = subprocess.Popen([binary, "-c", str(self.config)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", self.port)):
            assert time.monotonic() < deadline, "nats-server does not listen"
            time.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def own_nats(tmp_path, free_port):
    server = RestartableNats(tmp_path, free_port())
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def own_bus(own_nats):
    bus = await Bus.connect(BusSettings(own_nats.url), "test")
    yield bus
    await bus.close()


@pytest.fixture
async def bus(nats_url):
    bus = await Bus.connect(BusSettings(nats_url), "test")
    yield bus
    await bus.close()


@pytest.fixture
def eventually():
    """Waits for an asynchronous condition; what is refused while a server comes back is asked again."""

    async def wait(condition):
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(NatsError, APIError):
                    if await condition():
                        return
                await asyncio.sleep(0.02)

    return wait


@pytest.fixture
def unique():
    return f"run-{secrets.token_hex(6)}"
