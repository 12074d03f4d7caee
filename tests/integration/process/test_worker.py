"""A worker as a real process: a run's problem is shown in its presence."""

import asyncio
import json
import os
import secrets
import sys

from gradbus.bus import Buckets
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.spec import RunSpec

WORKER = """
import sys
from gradbus.process import ProcessSettings, run_worker
from gradbus.v1.weight_store_service_pb2 import GetHeadsRequest

class Server:
    def __init__(self, wires):
        self.weight_store = wires.weight_store

    async def serve_run(self, record):
        await self.weight_store.GetHeads(GetHeadsRequest(run_id=record.run_id))

async def build(wires):
    return Server(wires)

sys.exit(run_worker("rollout", ProcessSettings(), sys.argv[1], build))
"""


async def test_a_weight_store_that_refuses_is_trouble_in_words(bus, weight_store, nats_url, object_url):
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
    address = weight_store.settings.listen
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, address, env=environment)
    try:
        async with (await bus.bucket(Buckets.WORKERS)).view(worker) as seen, asyncio.timeout(60):
            while not (value := seen.get(worker)) or not (trouble := WorkerPresence.model_validate_json(value).trouble):
                await seen.changed.wait()
                seen.changed.clear()
    finally:
        await assignments.delete(worker)
        process.kill()
        await process.wait()
    assert trouble == f"the weight store at {address} does not accept our token; give both sides the same secrets"
