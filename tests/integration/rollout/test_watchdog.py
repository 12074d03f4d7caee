"""An engine that hangs: its calls end, and its worker hands back what it claims, says why and ends."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading

import pytest

from gradbus.bus import Buckets
from gradbus.control.runs import WorkerPresence
from gradbus.errors import EngineHungError
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings
from gradbus_rollout.engines.torch.scheduler import Scheduler
from gradbus_rollout.engines.watchdog import WatchedEngine

from .conftest import until

WORKER = """
import asyncio, sys, threading
from gradbus.process import run_worker
from gradbus_rollout.settings import Settings
from gradbus_rollout.engines.watchdog import WatchedEngine

class Stuck:
    name, version = "stuck engine", 0

    async def progress(self):
        return 0

    async def generate(self, groups):
        await asyncio.to_thread(threading.Event().wait)

class Server:
    def __init__(self, clients):
        self.presence = clients.heartbeat.presence

    async def serve_run(self, record):
        self.presence.claims = [1, 2]
        await WatchedEngine(Stuck(), settings.engine_progress_seconds).generate([])

    def release(self):
        pass

async def build(clients):
    return Server(clients)

settings = Settings()
sys.exit(run_worker("rollout", settings, settings.weight_store, build))
"""


class Slow:
    """Gets on with every look, and is done after `looks` of them."""

    name, version = "slow", 0

    def __init__(self, looks):
        self.looks = looks
        self.seen = 0
        self.done = asyncio.Event()

    async def progress(self):
        self.seen += 1
        if self.seen >= self.looks:
            self.done.set()
        return self.seen

    async def generate(self, groups):
        await self.done.wait()
        return groups


class Leaving:
    """Takes its time to close: a server lets go of what it samples."""

    name, version = "leaving", 0

    def __init__(self):
        self.closing, self.may_end = asyncio.Event(), asyncio.Event()
        self.closed = False

    async def close(self):
        self.closing.set()
        await self.may_end.wait()
        self.closed = True


async def test_an_engine_is_closed_to_its_end_however_often_its_worker_is_cancelled():
    engine = Leaving()
    task = asyncio.create_task(WatchedEngine(engine, 60.0).close())
    await engine.closing.wait()
    for _ in range(2):  # as the heartbeat does, each half second until its work has ended
        task.cancel()
        await asyncio.wait({task}, timeout=0.01)
    assert not task.done(), "the next run's engine would meet this one's server"
    engine.may_end.set()
    await asyncio.wait({task}, timeout=60)
    assert task.cancelled()
    assert engine.closed


async def test_a_torch_engine_whose_step_never_returns_is_given_up(engine, model_folder, monkeypatch):
    await engine.load([model_folder / "model.safetensors"], 0)
    stuck = threading.Event()
    monkeypatch.setattr(Scheduler, "step", lambda _self: stuck.wait())
    group = PromptGroup("a", (3, 4), (0,))
    with pytest.raises(EngineHungError, match=r"has 1 groups to do and made no progress .* GRADBUS_ENGINE_PROGRESS_SECONDS"):
        await WatchedEngine(engine, 0.2).generate([group])
    monkeypatch.undo()
    stuck.set()
    assert (await WatchedEngine(engine, 60.0).generate([group]))[0].key == "a"


async def test_an_engine_that_gets_on_is_waited_for_beyond_the_limit():
    assert await WatchedEngine(Slow(looks=30), 0.4).generate([]) == []


async def test_a_sglang_server_gets_on_while_it_generates_a_token_for_its_health(model_folder, tmp_path):
    health = 200

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {health} -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    engine = SGLangEngine(model_folder, SGLangConfig(), SGLangSettings(url=url), tmp_path)
    first = await engine.progress()
    assert await engine.progress() > first
    health = 503
    stopped = await engine.progress()
    assert await engine.progress() == stopped
    await engine.close()
    server.close()


async def test_a_worker_whose_engine_hangs_hands_back_its_claims_and_ends(bus, new_record, run_id, nats_url, buffer_url, object_url):
    name = f"worker-{secrets.token_hex(4)}"
    await new_record()
    workers, assignments = await bus.bucket(Buckets.WORKERS), await bus.bucket(Buckets.ASSIGNMENTS)
    urls = {"GRADBUS_NATS_URL": nats_url, "GRADBUS_BUFFER_URL": buffer_url, "GRADBUS_OBJECTS_URL": object_url}
    limits = {"GRADBUS_WORKER_ID": name, "GRADBUS_ENGINE_PROGRESS_SECONDS": "6"}
    command = [sys.executable, "-c", WORKER]
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **urls, **limits}, stderr=subprocess.PIPE)

    async def claims():
        entry = await workers.get(name)
        return entry is not None and WorkerPresence.model_validate_json(entry.value).claims == [1, 2]

    await assignments.put(name, json.dumps(run_id).encode())
    try:
        await until(claims)
        _, log = await asyncio.wait_for(process.communicate(), 120)
    finally:
        await assignments.delete(name)
    assert process.returncode == 1
    assert await workers.get(name) is None
    assert "EngineHungError: stuck engine has" in log.decode()
