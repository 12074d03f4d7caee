"""Three S3 servers: moto, which behaves as AWS does; rclone over a folder, which checks signatures and answers ranges with 200; and
SeaweedFS, as docker-compose.yml starts it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml
from moto.server import ThreadedMotoServer

from gradbus.deploy.secrets import write_secrets
from gradbus.deploy.stores import make_bucket
from gradbus.objects import ObjectStore
from gradbus.process import ProcessSettings

KEY_ID, SECRET = "someone", "something"
COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"


@dataclass(frozen=True)
class S3Server:
    """A server with one bucket."""

    address: str
    bucket: str = "bucket"
    credentials: dict[str, str] = field(default_factory=lambda: {"access_key_id": KEY_ID, "secret_access_key": SECRET})

    def is_set(self, monkeypatch) -> None:
        """From now on it is the one that is meant."""
        settings = {"AWS_ENDPOINT_URL": f"http://{self.address}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)

    def store(self, monkeypatch) -> ObjectStore:
        """An empty folder of the bucket."""
        self.is_set(monkeypatch)
        return ObjectStore.open(f"s3://{self.bucket}/{uuid.uuid4()}", self.credentials)


@pytest.fixture(scope="session")
def moto_server(free_port):
    port = free_port()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    yield S3Server(f"127.0.0.1:{port}")
    server.stop()


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory, free_port):
    folder, address = tmp_path_factory.mktemp("rclone"), f"127.0.0.1:{free_port()}"
    (folder / "bucket").mkdir()
    log = folder / "log"
    command = [shutil.which("rclone"), "serve", "s3", "--addr", address, "--auth-key", f"{KEY_ID},{SECRET}", "--config", "", str(folder)]
    with log.open("wb") as output, subprocess.Popen(command, stderr=output) as server:
        deadline = time.monotonic() + 60.0
        while "Starting s3 server" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield S3Server(address)
        server.terminate()


@pytest.fixture(scope="session")
def seaweed_server(tmp_path_factory, free_port):
    """With the command of docker-compose.yml, the configuration that the init job writes and the bucket that it makes."""
    folder = tmp_path_factory.mktemp("seaweed")
    (folder / "data").mkdir()
    write_secrets(folder)
    port = free_port()
    wanted = {"dir": folder / "data", "s3.port": port, "s3.ip.bind": "127.0.0.1", "s3.config": folder / "secrets/objects/s3.json"}
    # Of a container's own network no port can be taken; here each is one that is free.
    wanted |= {f"{part}.port": free_port() for part in ("master", "volume", "filer")}
    wanted |= {f"{part}.port.grpc": free_port() for part in ("master", "volume", "filer", "s3")}
    credentials = json.loads((folder / "secrets/supervisor/gradbus_objects_credentials").read_bytes())
    server = S3Server(f"127.0.0.1:{port}", "gradbus", credentials)
    with (folder / "log").open("wb") as log, subprocess.Popen(_compose_command(wanted), stderr=log, cwd=folder) as process:
        try:
            _until_healthy(server, folder / "log")
            with pytest.MonkeyPatch.context() as monkeypatch:
                server.is_set(monkeypatch)
                asyncio.run(make_bucket(ProcessSettings(objects_url="s3://gradbus", objects_credentials=credentials)))
            yield server
        finally:
            process.kill()  # by a signal that it can wait upon it takes 15 s
            for left in Path("/tmp").glob("seaweedfs-*.sock"):
                if any(str(value) in left.stem.split("-") for value in wanted.values()):
                    left.unlink()


def _compose_command(wanted):
    """Of the service `objects`, with values of the test's own."""
    service = yaml.safe_load(COMPOSE.read_text())["services"]["objects"]
    flags = dict(word.removeprefix("-").partition("=")[::2] for word in service["command"][1:])
    flags |= {name: str(value) for name, value in wanted.items()}
    program = service["entrypoint"][service["entrypoint"].index("weed") :]  # what prints its lines as JSON is left out
    return [*program, service["command"][0], *(f"-{name}={value}" if value else f"-{name}" for name, value in flags.items())]


def _until_healthy(server, log):
    deadline = time.monotonic() + 60.0
    while True:
        try:
            connection = HTTPConnection(server.address, timeout=5)
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
