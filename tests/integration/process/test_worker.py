"""A worker as a real process: a run's problem is shown in its presence."""

import asyncio
import contextlib
import json
import os
import secrets
import sys
from contextlib import asynccontextmanager

import pytest

from gradbus.bus import Buckets
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.process import WorkerHeartbeat, heartbeat
from gradbus.spec import RunSpec

WORKER = """
import asyncio, sys
from pathlib import Path
from gradbus.process import ProcessSettings, run_worker
from gradbus.v1.weight_store_service_pb2 import GetHeadsRequest

class Caller:
    def __init__(self, wires):
        self.weight_store = wires.weight_store

    async def serve_run(self, record):
        await self.weight_store.GetHeads(GetHeadsRequest(run_id=record.run_id))

    def release(self):
        Path(sys.argv[3]).touch()

class Patient:
    def __init__(self, wires):
        pass

    async def serve_run(self, record):
        await asyncio.Event().wait()

    def release(self):
        pass

async def build(wires):
    return globals()[sys.argv[2]](wires)

sys.exit(run_worker("rollout", ProcessSettings(), sys.argv[1], build))
"""


@pytest.fixture
def released(tmp_path):
    """The file that the worker makes when it releases its run."""
    return tmp_path / "released"


@pytest.fixture
async def assigned(bus, nats_url, object_url, released):
    """Starts a worker that has a run; yields its process and the view of its presence."""
    run_id, worker = f"run-{secrets.token_hex(4)}", f"worker-{secrets.token_hex(4)}"
    body = {
        "name": "test",
        "model": {"path": "m"},
        "data": {"train": "t"},
        "reward": {"service": "grpc://scorer:1"},
        "schedule": {"steps": 1},
    }
    record = RunRecord(run_id=run_id, spec=RunSpec.model_validate(body), created_unix_ns=1)
    await (await bus.bucket(Buckets.RUNS)).put(f"{run_id}.spec", record.to_bytes())
    assignments = await bus.bucket(Buckets.ASSIGNMENTS)
    await assignments.put(worker, json.dumps(run_id).encode())
    settings = {"WORKER_ID": worker, "NATS_URL": nats_url, "OBJECTS_URL": object_url, "RPC_TOKEN": "not the right one"}
    environment = {**os.environ, **{f"GRADBUS_{name}": value for name, value in settings.items()}}

    @asynccontextmanager
    async def start(kind, address="127.0.0.1:1"):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, address, kind, str(released), env=environment)
        try:
            async with (await bus.bucket(Buckets.WORKERS)).view(worker) as seen, asyncio.timeout(60):
                yield process, seen
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    yield start
    await assignments.delete(worker)


def presence(seen):
    return next((WorkerPresence.model_validate_json(value) for value in seen.entries.values()), None)


async def until(seen, condition):
    while not condition():
        await seen.changed.wait()
        seen.changed.clear()


async def test_a_weight_store_that_refuses_is_trouble_in_words_and_the_run_is_released(assigned, weight_store, bus, released):
    address = weight_store.settings.listen
    async with assigned("Caller", address) as (_, seen):
        await until(seen, lambda: presence(seen) and presence(seen).trouble)
        assert presence(seen).trouble == f"the weight store at {address} does not accept our token; give both sides the same secrets"
        assert not released.exists(), "the run is tried again"
        await (await bus.bucket(Buckets.ASSIGNMENTS)).delete(presence(seen).worker)
        while not released.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.05)


async def test_a_worker_that_is_asked_to_stop_shows_that_it_has_given_its_run_back(assigned):
    """Otherwise the conductor would count the stop against the run, as the death of a worker that prepared it."""
    shown = []
    async with assigned("Patient") as (process, seen):
        await until(seen, lambda: presence(seen) and presence(seen).run_id)
        seen.listen(lambda _: shown.append(presence(seen)))
        process.terminate()
        await until(seen, lambda: presence(seen) is None)
    assert [one and one.run_id for one in shown[-2:]] == ["", None]


async def test_a_worker_that_is_ready_says_so_at_once(bus, monkeypatch):
    """Otherwise its death in the next second would be that of a worker that prepared the run."""
    monkeypatch.setattr(heartbeat, "_BEAT_SECONDS", 600.0)
    beating = WorkerHeartbeat(bus, WorkerPresence(worker=f"worker-{secrets.token_hex(4)}", role="trainer", incarnation="a"))
    async with (
        (await bus.bucket(Buckets.WORKERS)).view(beating.presence.worker) as seen,
        beating.present(),
        asyncio.timeout(60),
    ):
        await until(seen, lambda: presence(seen))
        beating.progressed(0)
        await until(seen, lambda: presence(seen) and presence(seen).reached == 0)
