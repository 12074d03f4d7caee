"""The conductor's clients, with a reward and a reference service in this process that answer as the test says."""

import asyncio
import dataclasses
import json
import secrets
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from gradbus.aio.tasks import cancel_and_wait
from gradbus.buffer import BufferSettings, open_buffer
from gradbus.bus import Bucket, Buckets, Bus, BusSettings, Lease, View
from gradbus.control.runs import RunRecord, RunStatus, WorkerPresence
from gradbus.experience import ExperienceLog
from gradbus.formats.tokens import pack_logprobs
from gradbus.objects import ObjectStore
from gradbus.process import Process
from gradbus.rpc import RpcServer, RpcSettings, open_channel, token_hash
from gradbus.spec import parse_spec
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reference_service_pb2 import LogProbsResponse, SequenceLogProbs
from gradbus.v1.reference_service_pb2_grpc import (
    ReferenceServiceServicer,
    ReferenceServiceStub,
    add_ReferenceServiceServicer_to_server,
)
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward, ScoreResponse
from gradbus.v1.reward_service_pb2_grpc import RewardServiceServicer, RewardServiceStub, add_RewardServiceServicer_to_server
from gradbus.v1.sample_pb2 import FinishReason, Sample, Span
from gradbus.v1.weight_store_service_pb2 import CommitCheckpointRequest, PublishVersionRequest
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus.v1.weights_pb2 import CheckpointManifest, Frontier, Shard, WeightManifest
from gradbus_conductor.clients import Addresses, Clients
from gradbus_conductor.groups import scoring
from gradbus_conductor.run.driver import Driver
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.service import Conductor
from gradbus_conductor.settings import Settings
from gradbus_conductor.workers import WorkerPool

STEPS, SIZE = 4, 2

TOKEN = "of-the-test"


@dataclass
class Scorer(RewardServiceServicer):
    """Calls `answer(sample, attempt)` for each sample; None leaves the sample out. Results come in reverse order."""

    answer: Callable = lambda sample, _: ok(sample, float(sample.sample_id.endswith(".0")))
    down: int = 0
    most: int = 1 << 20
    """Samples in a call; one that brings more is refused."""
    refused: int = 0
    hangs: Callable = lambda _ids, _number: False
    """Whether a call never returns, by its sample ids and its number from 1."""
    calls: int = 0
    hanging: int = 0
    """Calls that hang at present."""
    release: asyncio.Event | None = None
    """The first call's results wait for it."""
    asked: dict[str, int] = field(default_factory=dict)
    versions: list[list[str]] = field(default_factory=list)
    """Files of the version that each call names."""

    async def Score(self, request, context):  # noqa: N802
        self.calls += 1
        self.versions.append(list(request.version_files))
        is_first = self.calls == 1
        if self.hangs([sample.sample_id for sample in request.samples], self.calls):
            await self._hang()
        if self.down:
            self.down -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the scorer's machine is on fire")
        if len(request.samples) > self.most:
            self.refused += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the scorer takes no message of that size")
        results = []
        for sample in request.samples:
            self.asked[sample.sample_id] = self.asked.get(sample.sample_id, 0) + 1
            results.append(self.answer(sample, self.asked[sample.sample_id]))
        if is_first and self.release is not None:
            await self.release.wait()
        return ScoreResponse(results=[result for result in reversed(results) if result is not None])

    async def _hang(self):
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.hanging -= 1


@dataclass
class Reference(ReferenceServiceServicer):
    """Log-probabilities of one sample at a time are cut short `short` times."""

    short: int = 0
    refusal: str = ""
    """Why it can never compute."""
    asked: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    """Sample ids of each call."""
    teacher: list[str] = field(default_factory=list)
    """Sample ids of the calls that asked for the teacher's."""
    versions: list[list[str]] = field(default_factory=list)
    """Files of the version that each call names."""
    value: float = 0.0
    """Of every token."""

    async def LogProbs(self, request, context):  # noqa: N802
        token = pack_logprobs([self.value])
        results = [SequenceLogProbs(sample_id=item.sample_id, logprobs=token * (len(item.token_ids) // 4)) for item in request.sequences]
        if count := request.top_k:
            for result in results:
                result.rows.ids, result.rows.logprobs = bytes(count * len(result.logprobs)), bytes((count + 1) * len(result.logprobs))
        self.versions.append(list(request.version_files))
        self.calls.append([item.sample_id for item in request.sequences])
        self.asked += self.calls[-1]
        self.teacher += self.calls[-1] if request.of_teacher else []
        if self.refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusal)
        if self.short:
            self.short -= 1
            part = results[0].rows if request.top_k else results[0]
            part.logprobs = part.logprobs[:-4]
        return LogProbsResponse(results=results[::-1])


def ok(sample, reward):
    return SampleReward(sample_id=sample.sample_id, status=RewardStatus.REWARD_STATUS_OK, reward=reward)


@pytest.fixture
def scorer():
    return Scorer()


@pytest.fixture
def reference():
    return Reference()


@pytest.fixture
def never_late(monkeypatch):
    """No call is repeated because it takes long: a busy machine would make the number of calls a matter of chance."""
    monkeypatch.setattr(scoring, "_FIRST_LATE_SECONDS", 3600.0)
    monkeypatch.setattr(scoring, "_MIN_LATE_SECONDS", 3600.0)


@pytest.fixture
def run_id():
    return f"run-{secrets.token_hex(6)}"


@pytest.fixture
async def bus(nats_url):
    bus = await Bus.connect(BusSettings(nats_url), "test")
    yield bus
    await bus.close()


@pytest.fixture
async def clients(bus, buffer_url, object_url, scorer, reference, tmp_path):
    server = RpcServer(RpcSettings("127.0.0.1:0", {"conductor": token_hash(TOKEN)}))
    add_RewardServiceServicer_to_server(scorer, server.server)
    add_ReferenceServiceServicer_to_server(reference, server.server)
    await server.start()
    channel = open_channel(f"127.0.0.1:{server.port}", TOKEN)
    buffer = open_buffer(BufferSettings(buffer_url))
    stubs = WeightStoreServiceStub(channel), RewardServiceStub(channel), ReferenceServiceStub(channel), RewardServiceStub(channel)
    yield Clients(bus, buffer, ObjectStore.open(object_url), *stubs, (channel,), Addresses(*["the-address:1"] * 3), tmp_path / "cache")
    await channel.close()
    await buffer.aclose()
    await server.stop()


@pytest.fixture
def record(run_id):
    def make(**sections):
        body = {
            "name": "p",
            "model": {"path": "m"},
            "data": {"train": "t"},
            "reward": {"service": "grpc://127.0.0.1:1"},
            "rollout": {"group_size": 2},
            "schedule": {"steps": 4, "groups_per_step": 2},
        }
        return RunRecord(run_id=run_id, spec=parse_spec(body | sections), created_unix_ns=1)

    return make


@pytest.fixture
def forked():
    """Sections of a run that goes on with the adapters of another one, and their digest."""
    digest = "sha256:" + "a" * 64
    lineage = {"base": "m", "ancestors": [{"run": "run-1", "name": "first", "version": 1, "digest": "sha256:" + "b" * 64}]}
    model = {"run": "run-1", "version": 1, "files": {}, "adapters": digest, "lineage": lineage}
    return {"model": model, "trainer": {"lora": {"rank": 2}}}, digest


@pytest.fixture
def group(run_id):
    def make(index, tokens=3, finish=FinishReason.FINISH_REASON_STOP, versions=(4, 5), run_id=run_id):
        spans = [Span(start=at, end=at + 1, version=version, trainable=True) for at, version in enumerate(versions)]
        samples = [
            Sample(sample_id=f"{index}.{n}", n=n, token_ids=bytes(4 * tokens), spans=spans, finish_reason=finish, text=f"answer {n}")
            for n in range(2)
        ]
        return Group(run_id=run_id, index=index, row=index, version=versions[0], prompt_text="2+2=", samples=samples)

    return make


@dataclass
class Stage:
    """Conductors of one run, one after the other, and what a trainer and a user would write."""

    clients: Clients
    record: RunRecord
    buckets: dict[str, Bucket]
    view: View
    runs: RunIndex
    pool: WorkerPool
    beating: list[asyncio.Task] = field(default_factory=list)

    @property
    def run_id(self):
        return self.record.run_id

    async def drive(self, name="conductor"):
        lease = await Lease.acquire(self.buckets[Buckets.LEASES], f"conductor.{self.run_id}", name)
        try:
            await Driver(self.clients, self.record, self.buckets[Buckets.RUNS], self.runs, self.pool).drive(lease)
        finally:
            await lease.release()

    async def status(self, run_id=""):
        entry = await self.buckets[Buckets.RUNS].get(f"{run_id or self.run_id}.status")
        return RunStatus.model_validate_json(entry.value) if entry else None

    async def trainer(self, name="trainer", **fields):
        presence = WorkerPresence(worker=name, role="trainer", incarnation="1", **fields)

        async def beat():
            while True:
                await self.buckets[Buckets.WORKERS].put(name, presence.to_bytes())
                await asyncio.sleep(1.0)

        self.beating.append(asyncio.create_task(beat()))
        await self.until(lambda: presence in self.pool.live.of_role("trainer"))

    async def request(self, desired):
        await self.buckets[Buckets.RUNS].put(f"{self.run_id}.desired", json.dumps(desired).encode())

    async def assigned(self, name="trainer"):
        entry = await self.buckets[Buckets.ASSIGNMENTS].get(name)
        return json.loads(entry.value) if entry else None

    async def trained(self, rewards=(0.0, 1.0), status=RewardStatus.REWARD_STATUS_OK):
        """All steps: the log, the final version and its checkpoint, as after a whole run."""
        differ = len(set(rewards)) > 1 and status == RewardStatus.REWARD_STATUS_OK
        verdict = Verdict.VERDICT_TRAIN if differ else Verdict.VERDICT_FILTERED
        scored = [SampleReward(status=status, reward=reward, reason="the grader broke") for reward in rewards]
        log = ExperienceLog(self.clients.buffer, self.run_id)
        reason = "" if differ else f"all {len(rewards)} valid rewards are equal"
        await log.append(1, {index: LogEntry(index=index, verdict=verdict, reason=reason, rewards=scored) for index in range(STEPS * SIZE)})
        digest = await self.clients.objects.put_blob(b"weights")
        shard = Shard(digest=digest, size_bytes=7, tensors=["w"])
        version = WeightManifest(run_id=self.run_id, term=1, step=STEPS, digest=digest, shards=[shard])
        await self.clients.weight_store.PublishVersion(PublishVersionRequest(manifest=version))
        checkpoint = CheckpointManifest(run_id=self.run_id, term=1, step=STEPS, weights=version, frontier=Frontier(below=STEPS * SIZE))
        checkpoint.optimizer.extend([shard] if differ else [])
        await self.clients.weight_store.CommitCheckpoint(CommitCheckpointRequest(manifest=checkpoint))

    @staticmethod
    async def until(condition):
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - a view has no condition of its own
                await asyncio.sleep(0.02)

    async def waits(self, words):
        """The status, once what it waits for holds `words`."""
        async with asyncio.timeout(60):
            while words not in (((status := await self.status()) and f"{status.state} {status.waiting_for}") or ""):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return status

    @asynccontextmanager
    async def conducted(self):
        """A conductor beside the block."""
        process = Process("conductor")
        serving = asyncio.create_task(Conductor(self.clients, Settings(worker_id="conductor")).serve(process))
        try:
            yield
        finally:
            process.stopping.set()
            await serving


async def clear(buckets):
    """Other tests share the server, and a run they left would stand ahead of this one's."""
    for bucket in buckets:
        async with bucket.view() as left:
            for key in list(left.entries):
                await bucket.delete(key)


@pytest.fixture
async def stage(clients, stub, record):
    clients = dataclasses.replace(clients, weight_store=stub)
    digest = await clients.objects.put_blob(b'{"prompt": "1+1="}\n{"prompt": "2+2="}\n')
    names = (Buckets.RUNS, Buckets.WORKERS, Buckets.ASSIGNMENTS, Buckets.LEASES)
    buckets = {name: await clients.bus.bucket(name) for name in names}
    await clear(buckets.values())
    run = record(data={"train": digest})
    await buckets[Buckets.RUNS].put(f"{run.run_id}.spec", run.to_bytes())
    async with (
        buckets[Buckets.RUNS].view() as view,
        buckets[Buckets.WORKERS].view() as present,
        buckets[Buckets.ASSIGNMENTS].view() as assigned,
    ):
        stage = Stage(clients, run, buckets, view, RunIndex(view), WorkerPool(buckets[Buckets.ASSIGNMENTS], present, assigned))
        yield stage
        for beat in stage.beating:
            await cancel_and_wait(beat)
    await clear(buckets.values())
