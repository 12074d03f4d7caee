"""Two S3 servers: moto, which behaves as AWS does, and rclone over a folder, which checks signatures and answers ranges with 200."""

from __future__ import annotations

import shutil
import subprocess
import time
import uuid
from dataclasses import dataclass
from http.client import HTTPConnection

import pytest
from moto.server import ThreadedMotoServer

from gradbus.objects import ObjectStore

KEY_ID, SECRET = "someone", "something"


@dataclass(frozen=True)
class S3Server:
    """A server with one bucket."""

    address: str

    def store(self, monkeypatch) -> ObjectStore:
        """An empty folder of the bucket."""
        settings = {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        return ObjectStore.open(f"s3://bucket/{uuid.uuid4()}")


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
