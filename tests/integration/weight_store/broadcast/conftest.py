"""A run with workers that are processes of their own, and a trainer in this one."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import safetensors.torch
import torch

from gradbus.bus import Buckets, Bus, EventLog
from gradbus.control.runs import WorkerPresence
from gradbus.objects import ObjectStore
from gradbus.v1.weight_store_service_pb2 import OpenTermRequest
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.weights.version_loader import VersionLoader
from gradbus_trainer.broadcast.publisher import BroadcastPublisher
from gradbus_trainer.tensors.export import export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch
from gradbus_trainer.versions.publisher import Publisher
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.writer import VersionWriter

TOKEN = "of-the-test"

FLOATS = 4 << 20
"""16 MiB of weights: more than sockets hold by themselves."""


def config_of(seconds):
    """Settings of trainer and workers that wait so long for each other."""
    waits = dict.fromkeys(("GRADBUS_BROADCAST_STALL_SECONDS", "GRADBUS_BROADCAST_JOIN_SECONDS"), str(seconds))
    return {"GRADBUS_BROADCAST_BUCKET_BYTES": str(1 << 20)} | waits


@pytest.fixture
def config():
    """Short waits: most tests have somebody who does not come."""
    return config_of(3)


@pytest.fixture(scope="session")
def processes(tmp_path_factory):
    """Forks a process; all are killed at the end."""
    log = tmp_path_factory.mktemp("workers") / "log"
    with log.open("wb") as errors:
        lab = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("lab.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert lab.stdout.readline() == "ready\n", log.read_text()
    pids = []

    def start(order):
        lab.stdin.write(json.dumps(order) + "\n")
        lab.stdin.flush()
        pids.append(int(lab.stdout.readline()))
        return pids[-1]

    start.log = log
    yield start
    for pid in pids:
        end(pid)
    lab.kill()
    lab.wait()


def end(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_ready(value, incarnation):
    presence = WorkerPresence.model_validate_json(value) if value else None
    return presence is not None and presence.receives and presence.incarnation == incarnation


class Reader:
    """An engine that holds weights by reading them; `paths` is where from."""

    async def load(self, paths, step, probe=None):
        self.paths = list(paths)
        return weights_digest({name: tensor for path in paths for name, tensor in safetensors.torch.load_file(path).items()})


@dataclass
class Lab:
    """One run."""

    start: object
    bus: Bus
    stub: object
    objects: ObjectStore
    run_id: str
    order: dict
    caches: Path
    pids: dict = field(default_factory=dict)

    def __post_init__(self):
        self.events = EventLog(self.bus, self.run_id)
        self.scratch = Scratch(self.caches / "scratch")

    async def worker(self, name, kind="works"):
        """Starts a worker; returns once others see that it takes part."""
        incarnation = self.begin(name, kind)
        workers = await self.bus.bucket(Buckets.WORKERS)
        async with workers.view(name) as view:
            while not is_ready(view.get(name), incarnation):
                await view.changed.wait()
                view.changed.clear()

    def begin(self, name, kind):
        incarnation = secrets.token_hex(4)
        order = {"name": name, "kind": kind, "cache": str(self.caches / name), "floats": FLOATS, "incarnation": incarnation}
        self.pids[name] = self.start(self.order | order)
        return incarnation

    async def trainer(self, term=1):
        """A publisher that broadcasts versions too."""
        store = StoreClient(self.stub, self.run_id)
        await self.stub.OpenTerm(OpenTermRequest(run_id=self.run_id, term=term), wait_for_ready=True, timeout=60)
        broadcasts = BroadcastPublisher(self.stub, self.events, self.run_id, term, "cpu")
        return Publisher(store, VersionWriter(self.objects, self.run_id, term), self.events, self.run_id, broadcasts.broadcast)

    async def publish(self, publisher, step):
        """What the trainer tells of the broadcast."""
        await publisher.publish(self.export(step))
        await publisher.settle()
        return await self.told(step)

    def export(self, step):
        return export_version(step, LazyTensors.of({"w": torch.full((FLOATS,), float(step))}), False, self.scratch)

    async def publish_until(self, publisher, workers):
        """Publishes on from version 1 until all of `workers` get one by broadcast; that version."""
        step = 1
        async with asyncio.timeout(180):
            while await self.publish(publisher, step) != ("all", workers, []):
                step += 1
        return step

    async def told(self, step):
        await self.events.wait_until_stored()
        found = [event.data for event in await self.events.read() if event.type == "broadcast" and event.data["version"] == step]
        return (found[-1]["outcome"], found[-1]["received"], found[-1]["dropped"]) if found else None

    async def load(self, name, step):
        """Loads a version with a worker's cache; whether it came from there."""
        reader = Reader()
        versions = VersionLoader(self.bus, self.objects, self.stub, self.run_id, self.caches / name)
        digest = await versions.load(reader, name, step)
        assert digest == weights_digest({"w": torch.full((FLOATS,), float(step))})
        return all(path.is_relative_to(self.caches) for path in reader.paths)

    async def logged(self, event):
        """Returns once a worker of this run has logged the event."""
        async with asyncio.timeout(60):
            while not self._logs(event):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)

    def _logs(self, event):
        return any(self.run_id in line and event in line for line in self.start.log.read_text().splitlines())

    def cached(self, name):
        return sorted(path.read_bytes() for path in (self.caches / name / "shards").glob("*"))


@pytest.fixture
async def lab(processes, store_process, stub, bus, nats_url, object_url, run_id, tmp_path, monkeypatch, config):
    for name, value in config.items():
        monkeypatch.setenv(name, value)
    store_process.start()
    order = {"nats": nats_url, "store": f"127.0.0.1:{store_process.port}", "token": TOKEN, "run": run_id, "environment": config}
    lab = Lab(processes, bus, stub, ObjectStore.open(object_url), run_id, order, tmp_path / "caches")
    yield lab
    for pid in lab.pids.values():
        end(pid)
