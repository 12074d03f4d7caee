"""The gateway and the weight store as processes, over a real NATS, a real buffer and a folder of objects."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from gradbus.access.api_keys import SCOPES, new_api_key, write_api_keys
from gradbus.buffer import BufferSettings, open_buffer
from gradbus.bus import Buckets, Bus, BusSettings
from gradbus.client import Client, document
from gradbus.control.runs import RunProgress, RunStatus
from gradbus.objects import ObjectStore
from gradbus.rpc import open_channel, token_hash

RPC_TOKEN = "of-the-test"
CALLERS = dict.fromkeys(("gateway", "conductor", "rollout", "trainer"), token_hash(RPC_TOKEN))


@dataclass(frozen=True)
class Stack:
    url: str
    key: str
    reader_key: str
    nats_url: str
    buffer_url: str
    object_url: str
    weight_store: str
    roots: Path
    gateway_pid: int
    environment: dict[str, str]


@pytest.fixture(scope="session")
def nats_url(start_nats):
    """A server of its own: the gateway lists all runs, also what other tests leave."""
    return start_nats()


@pytest.fixture(scope="session")
def stack(nats_url, buffer_url, tmp_path_factory, free_port):
    folder = tmp_path_factory.mktemp("gateway")
    roots = folder / "models"
    roots.mkdir()
    key, record = new_api_key("everything", SCOPES)
    reader_key, reader = new_api_key("reader", ["runs:read"])
    write_api_keys(folder / "keys.json", [record, reader])
    ports = [free_port() for _ in range(2)]
    clients = {
        "GRADBUS_NATS_URL": nats_url,
        "GRADBUS_BUFFER_URL": buffer_url,
        "GRADBUS_OBJECTS_URL": f"file://{folder}/objects",
        "GRADBUS_RPC_TOKEN": RPC_TOKEN,
        "GRADBUS_RPC_CALLERS": json.dumps(CALLERS),
        "GRADBUS_WEIGHT_STORE": f"127.0.0.1:{ports[0]}",
        "GRADBUS_CACHE_DIR": str(folder / "cache"),
        "GRADBUS_API_KEYS_FILE": str(folder / "keys.json"),
        "GRADBUS_MODEL_ROOTS": json.dumps([str(roots)]),
        "GRADBUS_ALLOW_LOOPBACK": "true",
        "GRADBUS_SERVED_HOSTS": json.dumps(["gradbus.test"]),
        "GRADBUS_PYTHON_GRADERS": "true",
    }
    processes = [start(name, port, clients, folder) for name, port in zip(["gradbus_weight_store", "gradbus_gateway"], ports, strict=True)]
    yield Stack(
        url=f"http://127.0.0.1:{ports[1]}",
        key=key,
        reader_key=reader_key,
        nats_url=nats_url,
        buffer_url=buffer_url,
        object_url=clients["GRADBUS_OBJECTS_URL"],
        weight_store=clients["GRADBUS_WEIGHT_STORE"],
        roots=roots,
        gateway_pid=processes[1].pid,
        environment=clients,
    )
    for process in processes:
        process.terminate()
    assert [process.wait(60) for process in processes] == [0, 0], (folder / "gradbus_gateway.log").read_text()


def start(module, port, clients, folder):
    log = folder / f"{module}.log"
    with log.open("wb") as file:
        environment = {**os.environ, **clients, "GRADBUS_LISTEN": f"127.0.0.1:{port}"}
        process = subprocess.Popen([sys.executable, "-m", module], env=environment, stderr=file)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return process
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{module} does not listen: {log.read_text()}")


@pytest.fixture(scope="module")
def start_gateway(stack, tmp_path_factory, free_port):
    """Starts one more gateway on the same servers, with settings of its own; returns its address and its process."""
    processes = []

    def begin(**settings):
        port = free_port()
        environment = stack.environment | {f"GRADBUS_{name.upper()}": str(value) for name, value in settings.items()}
        processes.append(start("gradbus_gateway", port, environment, tmp_path_factory.mktemp("limited")))
        return f"http://127.0.0.1:{port}", processes[-1]

    yield begin
    for process in processes:
        process.terminate()
    assert [process.wait(60) for process in processes] == [0] * len(processes)


@pytest.fixture(scope="module")
def gateway_with(start_gateway):
    """As `start_gateway`; returns the address alone."""
    return lambda **settings: start_gateway(**settings)[0]


@pytest.fixture
def http(stack):
    with httpx2.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.key}"}, timeout=60) as client:
        yield client


@pytest.fixture
def client(stack):
    with Client(stack.url, stack.key) as client:
        yield client


@pytest.fixture
def gradbus(stack, commands, tmp_path):
    """Runs the command; returns (exit status, output, errors)."""

    def command(*arguments):
        done = commands.run(*arguments, cwd=tmp_path, GRADBUS_URL=stack.url, GRADBUS_KEY=stack.key)
        return done.returncode, done.stdout, done.stderr

    return command


@pytest.fixture
async def bus(stack):
    bus = await Bus.connect(BusSettings(stack.nats_url), "test")
    yield bus
    await bus.close()


@pytest.fixture
async def buffer(stack):
    client = open_buffer(BufferSettings(stack.buffer_url))
    yield client
    await client.aclose()


@pytest.fixture
def objects(stack):
    return ObjectStore.open(stack.object_url)


@pytest.fixture
async def channel(stack):
    channel = open_channel(stack.weight_store, RPC_TOKEN)
    yield channel
    await channel.close()


@pytest.fixture
def model_folder(tmp_path, write_model):
    return write_model(tmp_path / "model")


@pytest.fixture
def spec(tmp_path, model_folder):
    """A spec whose files lie in `tmp_path`."""
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3"}\n')
    (tmp_path / "eval.jsonl").write_text('{"prompt": "2+2=", "answer": "4"}\n')
    grader = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}", "operation": "eq"}
    return {
        "name": "sums",
        "model": {"path": "model"},
        "data": {"train": "train.jsonl", "eval": "eval.jsonl"},
        "rollout": {"max_new_tokens": 8},
        "reward": {"grader": grader},
        "schedule": {"steps": 4, "groups_per_step": 2},
    }


@pytest.fixture
def submitted(client, spec, tmp_path):
    """A run, as the gateway answered."""
    return document(client.submit(spec, tmp_path))


@pytest.fixture
def stored_spec(submitted):
    """The spec with digests in the place of files: what curl would send."""
    return submitted["spec"]


@pytest.fixture
def set_state(bus):
    """Writes a run's status as its conductor does."""

    async def write(run_id, state, **progress):
        bucket = await bus.bucket(Buckets.RUNS)
        finished = 1 if state in {"succeeded", "failed", "cancelled"} else 0
        status = RunStatus(state=state, progress=RunProgress(**progress), updated_unix_ns=1, finished_unix_ns=finished)
        await bucket.put(f"{run_id}.status", status.to_bytes())

    return write
