"""The buffer that comes with the package, and a redis-server where there is one."""

import secrets
import shutil
import socket
import subprocess
import time

import pytest

from gradbus.buffer import BufferSettings, load_functions, open_buffer
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory, free_port):
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on the PATH")
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    process = subprocess.Popen([binary, "--port", str(port), "--dir", str(folder), "--appendonly", "yes"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert time.monotonic() < deadline, "redis-server does not listen"
        time.sleep(0.05)
    yield f"redis://127.0.0.1:{port}/0"
    process.kill()
    process.wait()


@pytest.fixture(params=["buffer_url", "redis_url"])
async def client(request):
    client = open_buffer(BufferSettings(request.getfixturevalue(request.param)))
    await load_functions(client)
    yield client
    await client.aclose()


@pytest.fixture
def run_id():
    return f"run-{secrets.token_hex(6)}"


@pytest.fixture
def log(client, run_id):
    return ExperienceLog(client, run_id)


@pytest.fixture
def store(client, run_id):
    return GroupStore(client, run_id)


@pytest.fixture
def entries():
    def make(*indexes, reason=""):
        return {index: LogEntry(index=index, verdict=Verdict.VERDICT_TRAIN, reason=reason) for index in indexes}

    return make


@pytest.fixture
def group(run_id):
    def make(index, worker="a"):
        return Group(run_id=run_id, index=index, row=index, worker=worker)

    return make
