"""A run's way through its states, with a conductor that dies between any two of its writes."""

import asyncio
import dataclasses
import json
from dataclasses import dataclass, field

import pytest
from grpc.aio import AioRpcError
from structlog.testing import capture_logs

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus import Bucket, Buckets, EventLog, Lease, TaskQueue, View
from gradbus.control.runs import RunRecord, RunStatus, WorkerPresence
from gradbus.errors import ObjectMissingError, StorageError
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.experience.archive import ArchiveWriter
from gradbus.objects import ObjectStore
from gradbus.process import Process
from gradbus.v1.group_pb2 import LogEntry, Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus.v1.weight_store_service_pb2 import CommitCheckpointRequest, PublishVersionRequest
from gradbus.v1.weights_pb2 import CheckpointManifest, Frontier, Shard, WeightManifest
from gradbus_conductor import service
from gradbus_conductor.clients import Clients
from gradbus_conductor.run import driver, trainers
from gradbus_conductor.run.driver import Driver
from gradbus_conductor.service import Conductor
from gradbus_conductor.settings import Settings
from gradbus_conductor.workers import WorkerPool

STEPS, SIZE = 4, 2


@dataclass
class Stage:
    """Conductors of one run, one after the other, and what a trainer and a user would write."""

    clients: Clients
    record: RunRecord
    buckets: dict[str, Bucket]
    view: View
    pool: WorkerPool
    beating: list[asyncio.Task] = field(default_factory=list)

    @property
    def run_id(self):
        return self.record.run_id

    async def drive(self, name="conductor"):
        lease = await Lease.acquire(self.buckets[Buckets.LEASES], f"conductor.{self.run_id}", name)
        try:
            await Driver(self.clients, self.record, self.buckets[Buckets.RUNS], self.view, self.pool).drive(lease)
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
        await until(lambda: presence in self.pool.present("trainer"))

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


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a view has no condition of its own
            await asyncio.sleep(0.02)


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
        stage = Stage(clients, run, buckets, view, WorkerPool(buckets[Buckets.ASSIGNMENTS], present, assigned))
        yield stage
        for beat in stage.beating:
            await cancel_and_wait(beat)
    await clear(buckets.values())


async def waits(stage, words):
    """The status, once what it waits for holds `words`."""
    async with asyncio.timeout(60):
        while words not in (((status := await stage.status()) and f"{status.state} {status.waiting_for}") or ""):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return status


async def test_a_failure_is_brought_to_its_end_by_the_next_conductor(stage, weight_store):
    await stage.trainer(run_id=stage.run_id, trouble="the loss is not finite", fatal=True)
    await weight_store.stop()
    with pytest.raises(AioRpcError):
        await stage.drive("first")
    status = await stage.status()
    assert (status.state, status.ending, status.reason) == ("starting", "failed", "the loss is not finite")
    assert status.waiting_for.startswith("the weight store at the-address:1 does not answer; check that it runs")
    await weight_store.start()
    await stage.drive("second")
    status = await stage.status()
    assert (status.state, status.reason, status.waiting_for) == ("failed", "the loss is not finite", "")
    assert await stage.assigned() is None


async def test_a_success_is_brought_to_its_end_without_a_trainer(stage, monkeypatch):
    await stage.trained()
    await stage.trainer()

    async def die(_self):
        raise ConnectionError("the conductor dies here")

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveWriter, "finish", die)
        with pytest.raises(ConnectionError):
            await stage.drive("first")
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", b'"the-next-run"')
    await asyncio.wait_for(stage.drive("second"), 60)
    assert (await stage.status()).state == "succeeded"
    assert await stage.assigned() == "the-next-run"


async def test_a_cancelled_run_leaves_no_queue_and_no_keys(stage):
    queue = TaskQueue(stage.clients.bus, stage.run_id)
    await queue.open()
    await stage.request("cancelled")
    await until(lambda: stage.view.get(f"{stage.run_id}.desired") == b'"cancelled"')
    await GroupStore(stage.clients.buffer, stage.run_id).put([])
    await stage.drive()
    assert (await stage.status()).state == "cancelled"
    assert await queue.waiting() == 0


async def test_object_storage_that_is_away_fails_no_run(stage, monkeypatch):
    await stage.trained()
    await stage.trainer()

    async def away(_self, _digest):
        raise StorageError("s3://bucket does not answer; try again")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "get_blob", away)
        with pytest.raises(StorageError):
            await stage.drive()
    status = await stage.status()
    assert (status.state, status.ending) == ("queued", None)
    assert "s3://bucket does not answer" in status.waiting_for
    await stage.drive()
    assert (await stage.status()).state == "succeeded"


async def test_a_dataset_that_is_gone_fails_the_run(stage, monkeypatch):
    await stage.trainer()

    async def gone(_self, digest):
        raise ObjectMissingError(f"blob {digest} is not there; upload it again")

    monkeypatch.setattr(ObjectStore, "get_blob", gone)
    await stage.drive()
    status = await stage.status()
    assert status.state == "failed"
    assert status.reason.endswith("upload it again")


async def test_a_run_in_which_nothing_could_be_judged_fails_and_says_why(stage):
    await stage.trained(status=RewardStatus.REWARD_STATUS_INVALID)
    await stage.trainer()
    await stage.drive()
    status = await stage.status()
    assert status.state == "failed"
    assert status.reason.startswith("no sample could be judged: the grader broke")


async def test_a_run_of_equal_rewards_succeeds_and_says_that_nothing_was_learned(stage):
    await stage.trained(rewards=(1.0, 1.0))
    await stage.trainer()
    await stage.drive()
    status = await stage.status()
    assert status.state == "succeeded"
    assert status.reason.startswith("nothing was learned: no group could be trained, for example group ")
    assert "all 2 valid rewards are equal; check the scorer" in status.reason


async def test_a_run_that_learned_succeeds_without_a_reason(stage):
    await stage.trained()
    await stage.trainer()
    await stage.drive()
    status = await stage.status()
    assert (status.state, status.reason, status.waiting_for) == ("succeeded", "", "")


async def test_a_queued_run_names_the_paused_one_that_has_the_trainer(stage):
    runs = stage.buckets[Buckets.RUNS]
    await stage.trainer()
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", b'"run-000-paused"')
    await runs.put("run-000-paused.status", RunStatus(state="paused").to_bytes())
    driving = asyncio.create_task(stage.drive())
    status = await waits(stage, "trainer has run run-000-paused, which is paused: resume or cancel it")
    assert status.state == "queued"
    await runs.put("run-000-paused.status", RunStatus(state="running").to_bytes())
    await waits(stage, "trainer has run run-000-paused, running")
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


async def test_a_paused_run_yields_its_trainer_and_takes_one_again_when_it_is_resumed(stage, monkeypatch):
    monkeypatch.setattr(trainers, "_YIELD_SECONDS", 0.0)
    await stage.trainer()
    driving = asyncio.create_task(stage.drive())
    await waits(stage, "starting ")
    async with asyncio.timeout(60):
        while await stage.assigned() != stage.run_id:  # noqa: ASYNC110 - a bucket has no condition of its own
            await asyncio.sleep(0.02)
    await stage.request("paused")
    await waits(stage, "paused ")
    assert await stage.assigned() == stage.run_id, "nobody else waits"
    await stage.buckets[Buckets.RUNS].put("run-zzz.spec", stage.record.to_bytes())
    async with asyncio.timeout(60):
        while await stage.assigned() == stage.run_id:  # noqa: ASYNC110 - a bucket has no condition of its own
            await asyncio.sleep(0.02)
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", b'"run-zzz"')
    await stage.request("running")
    await waits(stage, "queued a free trainer: trainer has run run-zzz")
    await stage.buckets[Buckets.ASSIGNMENTS].delete("trainer")
    async with asyncio.timeout(60):
        while await stage.assigned() != stage.run_id:  # noqa: ASYNC110 - a bucket has no condition of its own
            await asyncio.sleep(0.02)
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


async def test_a_queued_run_says_that_there_is_no_trainer_or_who_comes_first(stage):
    driving = asyncio.create_task(stage.drive())
    await waits(stage, "none is running; start one")
    await stage.buckets[Buckets.RUNS].put("run-000.spec", stage.record.to_bytes())
    await stage.trainer()
    await waits(stage, "run run-000 comes first") if await stage.assigned() is None else None
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


@pytest.mark.parametrize("key", ["spec", "desired", "status"])
async def test_a_run_that_cannot_be_read_is_skipped_and_frees_its_trainer(stage, key):
    runs, broken = stage.buckets[Buckets.RUNS], "run-000-broken"
    await runs.put(f"{broken}.spec", stage.record.to_bytes())
    await runs.put(f"{broken}.{key}", b"\xff not a record")
    await stage.trainer()
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", f'"{broken}"'.encode())
    await stage.trained()
    process = Process("conductor")
    with capture_logs() as logs:
        serving = asyncio.create_task(Conductor(stage.clients, Settings(worker_id="conductor")).serve(process))
        async with asyncio.timeout(60):
            while (status := await stage.status()) is None or status.state != "succeeded":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        process.stopping.set()
        await serving
    errors = [line["error"] for line in logs if line["event"] == "run_unreadable"]
    assert len(errors) == 1
    assert f"{broken}.{key} in the bucket `runs` cannot be read" in errors[0]


async def test_a_conductor_keeps_leases_for_the_head_of_the_queue_alone(stage, monkeypatch):
    monkeypatch.setattr(service, "_MAX_QUEUED", 2)
    monkeypatch.setattr(service, "_POLL_SECONDS", 0.02)
    runs, leases = stage.buckets[Buckets.RUNS], stage.buckets[Buckets.LEASES]
    names = [f"run-00{n}" for n in range(4)]
    for name in names:
        await runs.put(f"{name}.spec", stage.record.model_copy(update={"run_id": name}).to_bytes())
    await stage.request("cancelled")  # the youngest
    process = Process("conductor")
    serving = asyncio.create_task(Conductor(stage.clients, Settings(worker_id="conductor")).serve(process))
    await until(lambda: stage.view.get(f"{stage.run_id}.status") and b'"cancelled"' in stage.view.get(f"{stage.run_id}.status"))
    async with asyncio.timeout(60):
        while not all([await leases.get(f"conductor.{name}") for name in names[:2]]):  # noqa: ASYNC110 - each is taken on its own
            await asyncio.sleep(0.02)
    assert [await leases.get(f"conductor.{name}") for name in names[2:]] == [None, None]
    await runs.put("run-000.desired", b'"cancelled"')
    await until(lambda: stage.view.get("run-002.status"))
    process.stopping.set()
    await serving


async def test_a_run_paused_before_it_began_takes_no_trainer_until_it_is_resumed(stage, monkeypatch):
    monkeypatch.setattr(driver, "_POLL_SECONDS", 0.02)
    await stage.request("paused")
    await until(lambda: stage.view.get(f"{stage.run_id}.desired") == b'"paused"')
    await stage.trainer()
    driving = asyncio.create_task(stage.drive())
    await waits(stage, "paused")
    assert await stage.assigned() is None
    await stage.trained()
    await stage.request("running")
    await asyncio.wait_for(driving, 60)
    assert (await stage.status()).state == "succeeded"


async def test_a_run_that_is_paused_when_its_conductor_dies_keeps_no_trainer_from_the_others(stage, monkeypatch):
    monkeypatch.setattr(driver, "_POLL_SECONDS", 0.02)
    await stage.trainer()
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", json.dumps(stage.run_id).encode())
    await stage.request("paused")
    await until(lambda: stage.view.get(f"{stage.run_id}.desired") == b'"paused"' and stage.pool.run_of("trainer"))
    driving = asyncio.create_task(stage.drive("second"))
    async with asyncio.timeout(60):
        while await stage.assigned() is not None:  # noqa: ASYNC110 - a bucket has no condition of its own
            await asyncio.sleep(0.02)
    await waits(stage, "paused")
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


@pytest.mark.parametrize("emitted", [False, True])
async def test_the_history_of_a_finished_run_holds_its_last_checkpoint_whoever_died_after_it(stage, emitted):
    await stage.trained()
    history = EventLog(stage.clients.bus, stage.run_id)
    if emitted:
        history.emit("checkpoint", f"checkpoint {STEPS}", key=f"checkpoint:{STEPS}")
        await history.flush()
    await stage.trainer()
    await stage.drive()
    types = [event.type for event in await history.read()]
    assert types.count("checkpoint") == 1
    assert types[-1] == "state"
