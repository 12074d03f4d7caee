"""The weight store as a process, and manifests to give it."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gradbus.bus import Buckets, Bus, BusSettings
from gradbus.control.runs import RunRecord
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus.rpc import open_channel, token_hash
from gradbus.spec import RunSpec
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus.v1.weights_pb2 import CheckpointManifest, Frontier, Shard, ShardDelta, WeightManifest

TOKEN = "of-the-test"
CALLERS = dict.fromkeys(("gateway", "conductor", "rollout", "trainer"), token_hash(TOKEN))


@dataclass
class StoreProcess:
    """`start`, `kill` and `start` again: same address, same state."""

    nats_url: str
    object_url: str
    folder: Path
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen | None = None

    def start(self):
        environment = {
            **os.environ,
            "GRADBUS_LISTEN": f"127.0.0.1:{self.port}",
            "GRADBUS_NATS_URL": self.nats_url,
            "GRADBUS_OBJECTS_URL": self.object_url,
            "GRADBUS_RPC_CALLERS": json.dumps(CALLERS),
            "GRADBUS_CRASH_DIR": str(self.folder),
            **self.environment,
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "gradbus_weight_store"], env=environment, stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the weight store does not listen")

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def store_process(nats_url, object_url, tmp_path, free_port):
    process = StoreProcess(nats_url, object_url, tmp_path, free_port())
    yield process
    if process.process:
        process.kill()


@pytest.fixture(scope="module")
def shared_store(nats_url, tmp_path_factory, free_port):
    """One that runs, for all tests of a file whose runs keep out of each other's way."""
    folder = tmp_path_factory.mktemp("shared-store")
    process = StoreProcess(nats_url, f"file://{folder}/objects", folder, free_port())
    process.start()
    yield process
    process.kill()


@pytest.fixture
async def stub(store_process):
    channel = open_channel(f"127.0.0.1:{store_process.port}", TOKEN)
    yield WeightStoreServiceStub(channel)
    await channel.close()


@pytest.fixture
async def bus(nats_url):
    bus = await Bus.connect(BusSettings(nats_url), "test")
    yield bus
    await bus.close()


READY = {"wait_for_ready": True, "timeout": 60}
"""For what may be the first call: also right after a restart, while the channel still waits before it connects again."""


class Trainer:
    """Publishes and commits as a trainer does."""

    def __init__(self, stub, objects, run_id, term=1):
        self.stub = stub
        self.objects = objects
        self.run_id = run_id
        self.term = term
        self.previous = ""

    async def open(self):
        return (await self.stub.OpenTerm(pb.OpenTermRequest(run_id=self.run_id, term=self.term), **READY)).heads

    async def manifest(self, step, content=None):
        weights = content or f"weights {self.run_id} {step}".encode()
        shard = Shard(digest=await self.objects.put_blob(weights), size_bytes=len(weights), tensors=["w"])
        return WeightManifest(run_id=self.run_id, term=self.term, step=step, digest=digest_of(b"tensors " + weights), shards=[shard])

    async def delta(self, step, base, chain=()):
        """Version `step` as a delta alone, from the file of version `base`, whose chain is given."""
        manifest = await self.manifest(step)
        await self.objects.delete_blob(manifest.shards[0].digest)
        data = f"delta {self.run_id} {base} {step}".encode()
        base_digest = digest_of(f"weights {self.run_id} {base}".encode())
        link = ShardDelta(base_step=base, base_digest=base_digest, digest=await self.objects.put_blob(data), size_bytes=len(data))
        manifest.shards[0].chain.extend([*chain, link])
        manifest.shards[0].delta_only = True
        return manifest

    async def publish_manifest(self, manifest):
        return await self.stub.PublishVersion(pb.PublishVersionRequest(manifest=manifest))

    async def publish(self, step, content=None):
        return await self.stub.PublishVersion(pb.PublishVersionRequest(manifest=await self.manifest(step, content)))

    async def checkpoint(self, step, pinned=()):
        state = f"optimizer {self.run_id} {step}".encode()
        return CheckpointManifest(
            run_id=self.run_id,
            term=self.term,
            step=step,
            weights=await self.manifest(step),
            optimizer=[Shard(digest=await self.objects.put_blob(state), size_bytes=len(state))],
            frontier=Frontier(below=step * 4),
            pinned=[await self.manifest(one) for one in pinned],
            previous=self.previous,
            trained=dict.fromkeys(range(4), "digest"),
        )

    async def commit(self, step, pinned=()):
        manifest = await self.checkpoint(step, pinned)
        self.previous = (await self.commit_manifest(manifest)).digest
        return manifest

    async def commit_manifest(self, manifest):
        return await self.stub.CommitCheckpoint(pb.CommitCheckpointRequest(manifest=manifest))

    async def delete_run(self):
        return await self.stub.DeleteRun(pb.DeleteRunRequest(run_id=self.run_id), **READY)

    async def heads(self):
        return (await self.stub.GetHeads(pb.GetHeadsRequest(run_id=self.run_id), **READY)).heads

    async def listed(self):
        return await self.stub.ListVersions(pb.ListVersionsRequest(run_id=self.run_id), **READY)

    async def committed(self):
        """Steps of the committed checkpoints that are kept."""
        answer = await self.stub.ListCheckpoints(pb.ListCheckpointsRequest(run_id=self.run_id), **READY)
        return [version.step for version in answer.versions]

    async def version(self, step):
        return (await self.stub.GetVersion(pb.GetVersionRequest(run_id=self.run_id, step=step), **READY)).manifest

    async def checkpoint_head(self):
        return await self.stub.GetCheckpoint(pb.GetCheckpointRequest(run_id=self.run_id), **READY)


@pytest.fixture
def run_id():
    return f"run-{secrets.token_hex(4)}"


@pytest.fixture
def trainer_of(stub, object_url):
    objects = ObjectStore.open(object_url)
    return lambda run_id, term=1: Trainer(stub, objects, run_id, term)


@pytest.fixture
def trainer(trainer_of, run_id):
    return trainer_of(run_id)


@pytest.fixture
def write_spec(bus):
    async def write(run_id, keep=2, max_staleness=1, train="train.jsonl"):
        spec = RunSpec.model_validate(
            {
                "name": "test",
                "model": {"path": "model"},
                "data": {"train": train},
                "reward": {"service": "grpc://127.0.0.1:1"},
                "schedule": {"max_staleness": max_staleness, "groups_per_step": 4, "steps": 100},
                "checkpoint": {"keep": keep},
            }
        )
        runs = await bus.bucket(Buckets.RUNS)
        await runs.put(f"{run_id}.spec", RunRecord(run_id=run_id, spec=spec, created_unix_ns=1).to_bytes())

    return write
