"""A run's way through its states, with a conductor that dies between any two of its writes."""

import asyncio
import json

import pytest
from grpc.aio import AioRpcError
from structlog.testing import capture_logs

from gradbus.bus import Buckets, EventLog, TaskQueue
from gradbus.control.runs import RunStatus
from gradbus.errors import ObjectMissingError, StorageError
from gradbus.experience import GroupStore
from gradbus.experience.archive import ArchiveWriter
from gradbus.objects import ObjectStore
from gradbus.process import Process
from gradbus.run_files.record import read_record
from gradbus.v1.reward_pb2 import RewardStatus
from gradbus_conductor import service
from gradbus_conductor.groups.pipeline import GroupPipeline
from gradbus_conductor.run import driver, trainers
from gradbus_conductor.run.context import Ending
from gradbus_conductor.run.stall import StallDetector
from gradbus_conductor.service import Conductor
from gradbus_conductor.settings import Settings

STEPS, SIZE = 4, 2


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
    await stage.until(lambda: stage.view.get(f"{stage.run_id}.desired") == b'"cancelled"')
    await GroupStore(stage.clients.buffer, stage.run_id).put([])
    await stage.drive()
    assert (await stage.status()).state == "cancelled"
    assert await queue.waiting() == 0
    assert await stage.clients.objects.list(f"runs/{stage.run_id}") == [], "it never began"


async def test_object_storage_that_is_away_fails_no_run(stage, monkeypatch):
    await stage.trained()
    await stage.trainer()

    async def away(_self, _digest, _spare):
        raise StorageError("s3://bucket does not answer; try again")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "blob_file", away)
        with pytest.raises(StorageError):
            await stage.drive()
    status = await stage.status()
    assert (status.state, status.ending) == ("queued", None)
    assert "s3://bucket does not answer" in status.waiting_for
    await stage.drive()
    assert (await stage.status()).state == "succeeded"


async def test_a_dataset_that_is_gone_fails_the_run(stage, monkeypatch):
    await stage.trainer()

    async def gone(_self, digest, _spare):
        raise ObjectMissingError(f"blob {digest} is not there; upload it again")

    monkeypatch.setattr(ObjectStore, "blob_file", gone)
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


async def test_a_run_that_learned_succeeds_without_a_reason_and_leaves_its_record(stage):
    await stage.trained()
    await stage.trainer()
    await stage.drive()
    status = await stage.status()
    assert (status.state, status.reason, status.waiting_for) == ("succeeded", "", "")
    assert await read_record(stage.clients.objects, stage.run_id) == stage.record


async def test_a_queued_run_names_the_paused_one_that_has_the_trainer(stage):
    runs = stage.buckets[Buckets.RUNS]
    await stage.trainer()
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", b'"run-000-paused"')
    await runs.put("run-000-paused.status", RunStatus(state="paused").to_bytes())
    driving = asyncio.create_task(stage.drive())
    status = await stage.waits("trainer has run run-000-paused, which is paused: resume or cancel it")
    assert status.state == "queued"
    await runs.put("run-000-paused.status", RunStatus(state="running").to_bytes())
    await stage.waits("trainer has run run-000-paused, running")
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


async def test_a_paused_run_yields_its_trainer_and_takes_one_again_when_it_is_resumed(stage, monkeypatch):
    monkeypatch.setitem(trainers._YIELD_SECONDS, "paused", 0.0)
    await stage.trainer()
    driving = asyncio.create_task(stage.drive())
    await stage.waits("starting ")
    async with asyncio.timeout(60):
        while await stage.assigned() != stage.run_id:  # noqa: ASYNC110 - a bucket has no condition of its own
            await asyncio.sleep(0.02)
    await stage.request("paused")
    await stage.waits("paused ")
    assert await stage.assigned() == stage.run_id, "nobody else waits"
    await stage.buckets[Buckets.RUNS].put("run-zzz.spec", stage.record.to_bytes())
    async with asyncio.timeout(60):
        while await stage.assigned() == stage.run_id:  # noqa: ASYNC110 - a bucket has no condition of its own
            await asyncio.sleep(0.02)
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", b'"run-zzz"')
    await stage.request("running")
    await stage.waits("queued a free trainer: trainer has run run-zzz")
    await stage.buckets[Buckets.ASSIGNMENTS].delete("trainer")
    async with asyncio.timeout(60):
        while await stage.assigned() != stage.run_id:  # noqa: ASYNC110 - a bucket has no condition of its own
            await asyncio.sleep(0.02)
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


@pytest.mark.parametrize(
    ("state", "part", "method", "what"),
    [
        ("waiting_for_reward", GroupPipeline, "scoring_failure", "rewards: the scorer"),
        ("waiting_for_environment", StallDetector, "environment_failure", "environment: the world"),
    ],
)
async def test_a_run_whose_other_side_is_away_leaves_its_trainer_to_one_that_waits_and_does_not_take_it_back(
    stage, monkeypatch, state, part, method, what
):
    fault = f"{what.partition(': ')[2]} is on fire"
    monkeypatch.setitem(trainers._YIELD_SECONDS, state, 0.0)
    monkeypatch.setattr(part, method, lambda *_: fault)
    runs, assignments = stage.buckets[Buckets.RUNS], stage.buckets[Buckets.ASSIGNMENTS]
    await stage.trainer()
    driving = asyncio.create_task(stage.drive())
    await stage.waits(f"{state} {fault}")
    assert await stage.assigned() == stage.run_id, "nobody else waits"
    await runs.put("run-zzz.spec", stage.record.to_bytes())
    status = await stage.waits("queued a free trainer: run run-zzz comes first")
    assert status.reason.endswith(f"waits for its {what} is on fire")
    assert await stage.assigned() is None, "it is the older one, and leaves the trainer free"
    await assignments.put("trainer", b'"run-zzz"')
    await runs.put("run-zzz.status", RunStatus(state="running").to_bytes())
    status = await stage.waits("queued a free trainer: trainer has run run-zzz, running")
    assert status.reason.endswith(fault)
    monkeypatch.undo()
    await runs.put("run-zzz.status", RunStatus(state="succeeded").to_bytes())
    await assignments.delete("trainer")
    status = await stage.waits("starting ")
    assert (status.reason, status.yielded_unix_ns) == ("", 0)
    assert await stage.assigned() == stage.run_id
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


async def test_a_run_takes_no_trainer_of_another_queue_and_says_which_it_waits_for(stage):
    spec = stage.record.spec.model_copy(update={"queue": "team-a"})
    stage.record = stage.record.model_copy(update={"spec": spec})
    await stage.buckets[Buckets.RUNS].put(f"{stage.run_id}.spec", stage.record.to_bytes())
    await stage.until(lambda: stage.runs.queue_of(stage.run_id) == "team-a")
    await stage.trainer("idle")
    driving = asyncio.create_task(stage.drive())
    await stage.waits("queued a free trainer of queue team-a: none is running; start one with GRADBUS_QUEUE=team-a")
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", b'"run-zzz"')
    await stage.trainer("trainer", queue="team-a")
    await stage.waits("queued a free trainer of queue team-a: trainer has run run-zzz")
    await stage.buckets[Buckets.ASSIGNMENTS].delete("trainer")
    await stage.waits("starting ")
    assert (await stage.assigned(), await stage.assigned("idle")) == (stage.run_id, None)
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


async def test_a_queued_run_begins_when_a_trainer_is_free_and_not_at_its_next_look(stage, monkeypatch):
    monkeypatch.setattr(driver, "_POLL_SECONDS", 3600.0)
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", b'"run-zzz"')
    await stage.until(lambda: stage.pool.run_of("trainer") == "run-zzz")
    await stage.trainer()
    driving = asyncio.create_task(stage.drive())
    await stage.waits("queued a free trainer: trainer has run run-zzz")
    await stage.buckets[Buckets.ASSIGNMENTS].delete("trainer")
    await stage.waits("starting ")
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


async def test_users_take_turns_for_trainers(stage):
    runs, older = stage.buckets[Buckets.RUNS], stage.record.model_copy(update={"run_id": "run-000", "key_id": "alice"})
    await runs.put("alice.served", b"1")
    await runs.put("run-000.spec", older.to_bytes())
    await stage.until(lambda: len(stage.runs.names("queue")) == 2)
    await stage.trainer()
    driving = asyncio.create_task(stage.drive())
    await stage.waits("starting ")
    assert await stage.assigned() == stage.run_id
    assert int((await runs.get("-.served")).value) > 1
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


async def test_a_queued_run_names_the_run_of_another_user_that_comes_first(stage):
    runs, younger = stage.buckets[Buckets.RUNS], stage.record.model_copy(update={"run_id": "run-zzz", "key_id": "alice"})
    await runs.put("-.served", b"1")
    await runs.put("run-zzz.spec", younger.to_bytes())
    await stage.until(lambda: next(stage.runs.upcoming((), "default"), "") == "run-zzz")
    await stage.trainer()
    driving = asyncio.create_task(stage.drive())
    await stage.waits("queued a free trainer: run run-zzz comes first, for API keys take turns")
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


async def test_a_run_that_has_a_trainer_keeps_it_when_its_conductor_dies_though_an_older_one_waits(stage):
    runs = stage.buckets[Buckets.RUNS]
    await runs.put("run-000.spec", stage.record.to_bytes())
    await runs.put(f"{stage.run_id}.status", RunStatus(state="running", prompts="sha256:0").to_bytes())
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", json.dumps(stage.run_id).encode())
    await stage.until(lambda: stage.runs.names("active") == [stage.run_id] and stage.pool.run_of("trainer"))
    await stage.trainer()
    await stage.trained()
    await asyncio.wait_for(stage.drive("second"), 60)
    assert (await stage.status()).state == "succeeded"


async def test_a_queued_run_says_that_there_is_no_trainer_or_who_comes_first(stage):
    driving = asyncio.create_task(stage.drive())
    await stage.waits("none is running; start one")
    await stage.buckets[Buckets.RUNS].put("run-000.spec", stage.record.to_bytes())
    await stage.until(lambda: stage.runs.place("run-000") is not None)
    await stage.trainer()
    await stage.waits("run run-000 comes first")
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


async def test_a_run_that_is_paused_when_its_conductor_dies_keeps_no_trainer_from_the_others(stage, monkeypatch):
    monkeypatch.setattr(driver, "_POLL_SECONDS", 0.02)
    await stage.trainer()
    await stage.buckets[Buckets.ASSIGNMENTS].put("trainer", json.dumps(stage.run_id).encode())
    await stage.request("paused")
    await stage.until(lambda: stage.view.get(f"{stage.run_id}.desired") == b'"paused"' and stage.pool.run_of("trainer"))
    driving = asyncio.create_task(stage.drive("second"))
    async with asyncio.timeout(60):
        while await stage.assigned() is not None:  # noqa: ASYNC110 - a bucket has no condition of its own
            await asyncio.sleep(0.02)
    await stage.waits("paused")
    await stage.request("cancelled")
    await asyncio.wait_for(driving, 60)


@pytest.mark.parametrize("emitted", [False, True])
async def test_the_history_of_a_finished_run_holds_its_last_checkpoint_whoever_died_after_it(stage, emitted):
    await stage.trained()
    history = EventLog(stage.clients.bus, stage.run_id)
    if emitted:
        history.emit("checkpoint", f"checkpoint {STEPS}", key=f"checkpoint:{STEPS}")
        await history.wait_until_stored()
    await stage.trainer()
    await stage.drive()
    types = [event.type for event in await history.read()]
    assert types.count("checkpoint") == 1
    assert types[-1] == "state"


async def test_a_run_that_the_conductor_cannot_drive_fails_with_the_cause(stage, monkeypatch):
    async def overflow(_):
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr(driver.RunLoop, "drive", overflow)
    monkeypatch.setattr(service, "_POLL_SECONDS", 0.02)
    await stage.trainer()
    process = Process("conductor")
    with capture_logs() as logs:
        serving = asyncio.create_task(Conductor(stage.clients, Settings(worker_id="conductor")).serve(process))
        await stage.until(lambda: b'"failed"' in (stage.view.get(f"{stage.run_id}.status") or b""))
        process.stopping.set()
        await serving
    assert "cannot drive the run: OverflowError: int too large" in (await stage.status()).reason
    assert len([line for line in logs if line["event"] == "run_interrupted"]) == 3


async def test_infrastructure_that_is_away_fails_no_run_however_often_the_conductor_meets_it(stage, monkeypatch):
    interrupted = []

    async def refuse(_):
        interrupted.append(1)
        if len(interrupted) < 10:
            raise StorageError("object storage does not answer; it is tried again")
        return Ending("succeeded")

    monkeypatch.setattr(driver.RunLoop, "drive", refuse)
    monkeypatch.setattr(service, "_POLL_SECONDS", 0.02)
    await stage.trainer()
    process = Process("conductor")
    serving = asyncio.create_task(Conductor(stage.clients, Settings(worker_id="conductor")).serve(process))
    await stage.until(
        lambda: stage.view.get(f"{stage.run_id}.status") and b'"state":"succeeded"' in stage.view.get(f"{stage.run_id}.status")
    )
    process.stopping.set()
    await serving


async def test_a_run_that_cannot_even_be_ended_is_tried_ever_more_rarely(stage):
    conductor = Conductor(stage.clients, Settings(worker_id="conductor"))
    pauses = [conductor._failed("run-1", KeyError("a"), 0) for _ in range(20)]
    assert pauses[:3] == [service._POLL_SECONDS] * 3
    assert pauses[3:6] == [2 * service._POLL_SECONDS, 4 * service._POLL_SECONDS, 8 * service._POLL_SECONDS]
    assert pauses[-1] == service._MOST_BACKOFF_SECONDS
