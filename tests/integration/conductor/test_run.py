"""What a run's loop believes of what it is told."""

import asyncio
import json

import pytest

from gradbus.aio.tasks import cancel_and_wait
from gradbus.buffer import keys
from gradbus.bus import Buckets, EventLog, Lease, TaskQueue, subjects
from gradbus.control.runs import WorkerPresence
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.v1.group_pb2 import LogEntry, Verdict
from gradbus.v1.task_pb2 import GroupsSampled, TaskKind
from gradbus.v1.weights_pb2 import Frontier, TrainerProgress, WeightManifest
from gradbus_conductor.groups import dispatch
from gradbus_conductor.groups.data_order import DataOrder
from gradbus_conductor.groups.dataset import Dataset, Prepared
from gradbus_conductor.run.learning_signal import LearningSignal
from gradbus_conductor.run.loop import RunFrame, RunLoop
from gradbus_conductor.run.status import Report
from gradbus_conductor.workers.pool import WorkerPool


@pytest.fixture
async def loop(clients, record, run_id):
    """A loop that nobody drives: a test calls its parts."""
    runs, assignments, leases = [await clients.bus.bucket(name) for name in (Buckets.RUNS, Buckets.ASSIGNMENTS, Buckets.LEASES)]
    lease = await Lease.acquire(leases, f"conductor.{run_id}", "conductor")
    prepared = Prepared(Dataset(("{}",) * 8, ""), None, DataOrder("d", 8, 0))
    report = Report(runs, EventLog(clients.bus, run_id), run_id, size=2)
    workers = await clients.bus.bucket(Buckets.WORKERS)
    presence = WorkerPresence(worker=run_id, role="rollout", incarnation="1", run_id=run_id, claims=[1])
    await workers.put(run_id, presence.to_bytes())
    await assignments.put(run_id, json.dumps(run_id).encode())
    async with runs.view(f"{run_id}.*") as view, workers.view(run_id) as present, assignments.view(run_id) as assigned:
        yield RunLoop(RunFrame(clients, record(), prepared, runs, view, WorkerPool(assignments, present, assigned), lease, report))
    await lease.release()
    await workers.delete(run_id)
    await assignments.delete(run_id)


async def fetched(queue, groups):
    """Indexes of at least so many groups from the queue."""
    found = []
    async with asyncio.timeout(60):
        while len(found) < groups:
            found += [each.index for delivery in await queue.fetch(100) for each in delivery.task.groups]
    return sorted(found)


async def test_a_trainer_that_was_replaced_is_not_believed(loop, clients, run_id):
    loop._heads.checkpoint = 2
    loop._schedule.recover([(index, True) for index in range(8)], 0, [], 0)
    async with loop._listening():
        for step in (1, 3):
            progress = TrainerProgress(run_id=run_id, step=step, frontier=Frontier(below=2 * step))
            await clients.bus.publish(subjects.missing(run_id), progress.SerializeToString())
            async with asyncio.timeout(60):
                while step == 3 and loop._lacking is None:  # noqa: ASYNC110 - the loop has no condition for it
                    await asyncio.sleep(0.01)
        assert loop._lacking.step == 3
        await clients.bus.publish(subjects.missing(run_id), TrainerProgress(run_id=run_id, step=1).SerializeToString())
        await clients.bus.client.flush()
        assert loop._lacking.step == 3, "older than the checkpoint: the frontier it names was trimmed long ago"


async def test_a_trainer_that_waits_for_what_is_still_being_made_has_nobody_read_the_log_again(loop, clients, run_id):
    loop._schedule.recover([(0, True)], 0, [], 0)
    loop._schedule.dispatchable(0)
    told = asyncio.Event()

    async def noted(_payload):
        told.set()

    progress = TrainerProgress(run_id=run_id, step=0).SerializeToString()
    async with loop._listening(), clients.bus.subscribed(subjects.missing(run_id), noted):
        for owed in (True, False):
            await clients.bus.publish(subjects.missing(run_id), progress)
            await asyncio.wait_for(told.wait(), 60)
            assert (loop._lacking is None) is owed
            told.clear()
            loop._schedule.appended(1, True)


async def test_what_an_earlier_conductor_sent_and_is_claimed_or_sampled_is_not_sent_again(loop, clients, run_id, group, monkeypatch):
    monkeypatch.setattr(dispatch, "_PATIENCE_SECONDS", 600.0)
    sampled = group(0)
    sampled.row = loop._frame.prepared.order.row(0)
    await GroupStore(clients.buffer, run_id).put([sampled])
    queue = TaskQueue(clients.bus, run_id)
    await queue.open()
    loop._heads.version = 0
    await loop._pass()
    assert await fetched(queue, 4) == [2, 3, 4, 5]
    loop._heads.version = 1
    await loop._pass()
    assert await fetched(queue, 2) == [6, 7], "what nobody can have sent goes out at once"
    await loop._sampling.close()
    await queue.remove()


async def test_a_group_that_is_done_while_its_conductor_is_replaced_is_not_sampled_again(loop, clients, run_id, group, scorer, monkeypatch):
    sampled = group(0)
    sampled.row = loop._frame.prepared.order.row(0)
    await GroupStore(clients.buffer, run_id).put([sampled])
    heads = await clients.bus.bucket(Buckets.HEADS)
    await heads.put(f"{run_id}.version", WeightManifest(term=1, step=0, digest="sha256:" + "0" * 64).SerializeToString())

    async def told_meanwhile(_queue):
        sampled = GroupsSampled(run_id=run_id, kind=TaskKind.TASK_KIND_TRAIN, indexes=[0])
        await clients.bus.publish(subjects.groups(run_id), sampled.SerializeToString())
        async with asyncio.timeout(60):
            while not loop._sampling._signalled:  # noqa: ASYNC110 - it does not signal
                await asyncio.sleep(0.01)

    monkeypatch.setattr(TaskQueue, "purge", told_meanwhile)
    driving = asyncio.create_task(loop.drive())
    async with asyncio.timeout(60):
        while "0.0" not in scorer.asked:  # noqa: ASYNC110 - the scorer counts, it does not signal
            await asyncio.sleep(0.01)
    await cancel_and_wait(driving)


async def test_a_free_run_that_filters_all_it_samples_fails_and_says_why(loop):
    loop._learning_signal = LearningSignal(
        loop._spec.model_copy(update={"schedule": loop._spec.schedule.model_copy(update={"mode": "free"})})
    )
    for index in range(1024):
        loop._learning_signal.add(LogEntry(index=index, verdict=Verdict.VERDICT_FILTERED, reason="all 2 valid rewards are equal"))
    ending = await loop._pass()
    assert ending.state == "failed"
    assert "none of the last 1024 groups could be trained: all 2 valid rewards are equal" in ending.reason


async def test_entries_that_the_log_lost_and_the_bitmap_kept_are_asked_for_again(loop, clients, run_id):
    log = ExperienceLog(clients.buffer, run_id)
    term = loop._frame.lease.term
    await log.append(term, {index: LogEntry(index=index, verdict=Verdict.VERDICT_TRAIN) for index in range(6)})
    third = (await log.read())[3]
    await clients.buffer.xdel(keys.experience(run_id), third.stream_id)
    loop._lacking = TrainerProgress(run_id=run_id, step=1, frontier=Frontier(below=2))
    await loop._recover()
    assert loop._schedule.outstanding().keys() == {3}
    assert await log.append(term, {3: LogEntry(index=3)}) == [3], "else it would be sampled for ever and never enter"
