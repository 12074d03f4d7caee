"""How the loop of a run reacts to reports of trainers and workers, and to what an earlier conductor left."""

import asyncio
import json

import pytest
from work_counters import PythonCounter, check, growth, least
from work_traffic import counted_traffic

from gradbus.aio.tasks import cancel_and_wait
from gradbus.buffer import keys
from gradbus.bus import Buckets, EventLog, Lease, TaskQueue, subjects
from gradbus.control.runs import WorkerPresence
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.v1.group_pb2 import LogEntry, Verdict
from gradbus.v1.task_pb2 import GroupsSampled, TaskKind
from gradbus.v1.weights_pb2 import Frontier, TrainerProgress, WeightManifest
from gradbus_conductor.groups import dispatch
from gradbus_conductor.groups.dataset import Dataset, RunData
from gradbus_conductor.groups.order import DataOrder
from gradbus_conductor.run import loop as loop_module
from gradbus_conductor.run.context import RunContext
from gradbus_conductor.run.learning_signal import LearningSignal
from gradbus_conductor.run.loop import RunLoop
from gradbus_conductor.run.status import RunStatusWriter
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.workers import WorkerPool

DATA = RunData(Dataset(("{}",) * 8, ""), None, DataOrder("d", 8, 0))


@pytest.fixture
async def loop(clients, record, run_id):
    """A loop that nobody drives: a test calls its parts."""
    runs, assignments, leases = [await clients.bus.bucket(name) for name in (Buckets.RUNS, Buckets.ASSIGNMENTS, Buckets.LEASES)]
    lease = await Lease.acquire(leases, f"conductor.{run_id}", "conductor")
    status = RunStatusWriter(runs, EventLog(clients.bus, run_id), run_id, 2)
    workers = await clients.bus.bucket(f"workers-{run_id}")  # whose keys do not expire, however long the test takes
    presence = WorkerPresence(worker=run_id, role="rollout", incarnation="1", run_id=run_id, claims=[1])
    await workers.put(run_id, presence.to_bytes())
    await assignments.put(run_id, json.dumps(run_id).encode())
    async with runs.view(f"{run_id}.*") as view, workers.view(run_id) as present, assignments.view(run_id) as assigned:
        context = RunContext(clients, record(), runs, RunIndex(view), WorkerPool(assignments, present, assigned), lease, status)
        yield RunLoop(context, DATA)
    await lease.release()
    await clients.bus.jetstream.delete_key_value(f"workers-{run_id}")
    await assignments.delete(run_id)


async def fetched(queue, groups):
    """Indexes of at least so many groups from the queue."""
    found = []
    async with asyncio.timeout(60):
        while len(found) < groups:
            found += [each.index for delivery in await queue.fetch(100) for each in delivery.task.groups]
    return sorted(found)


@pytest.fixture
def report(loop, clients, run_id, monkeypatch):
    """Sends a trainer's report of missing groups; returns once the loop has had it."""
    handled, handle = asyncio.Event(), loop._on_missing

    async def handle_and_tell(payload):
        await handle(payload)
        handled.set()

    monkeypatch.setattr(loop, "_on_missing", handle_and_tell)

    async def send(progress):
        handled.clear()
        await clients.bus.publish(subjects.missing(run_id), progress.SerializeToString())
        await asyncio.wait_for(handled.wait(), 60)

    return send


async def test_a_trainer_that_was_replaced_is_not_believed(loop, report, run_id):
    loop._heads.checkpoint = 2
    loop._schedule.recover([(index, True) for index in range(8)], TrainerProgress())
    async with loop._subscribed():
        await report(TrainerProgress(run_id=run_id, step=1, frontier=Frontier(below=2)))
        assert loop._missing_report is None, "older than the checkpoint: the frontier it names was trimmed long ago"
        await report(TrainerProgress(run_id=run_id, step=3, frontier=Frontier(below=6)))
        assert loop._missing_report.step == 3
        await report(TrainerProgress(run_id=run_id, step=1))
        assert loop._missing_report.step == 3


async def test_a_trainer_that_waits_for_outstanding_groups_causes_no_recovery(loop, report, run_id):
    loop._schedule.recover([(0, True)], TrainerProgress())
    loop._schedule.dispatchable(0)
    async with loop._subscribed():
        for is_outstanding in (True, False):
            await report(TrainerProgress(run_id=run_id, step=0))
            assert (loop._missing_report is None) is is_outstanding
            loop._schedule.appended(1, True)


async def test_what_an_earlier_conductor_dispatched_and_is_claimed_or_sampled_is_not_dispatched_again(
    loop, clients, run_id, group, monkeypatch
):
    monkeypatch.setattr(dispatch, "_REDISPATCH_SECONDS", 600.0)
    sampled = group(0)
    sampled.row = DATA.order.row(0)
    await GroupStore(clients.buffer, run_id).put([sampled])
    queue = TaskQueue(clients.bus, run_id)
    await queue.open()
    loop._heads.version = 0
    await loop._pass()
    assert await fetched(queue, 4) == [2, 3, 4, 5]
    loop._heads.version = 1
    await loop._pass()
    assert await fetched(queue, 2) == [6, 7], "what nobody can have sent goes out at once"
    await loop._pipeline.close()
    await queue.remove()


@pytest.fixture
async def look(loop, clients, run_id, monkeypatch):
    """One pass that looks at the workers and may write the status, of a run in which nothing happens any more."""
    monkeypatch.setattr(dispatch, "_REDISPATCH_SECONDS", 600.0)
    monkeypatch.setattr(loop._stall, "reason", lambda *_: "")  # on a slow machine it would begin to count seconds
    queue = TaskQueue(clients.bus, run_id)
    await queue.open()
    loop._heads.version = 0

    async def once():
        loop._look_at = loop._repair_at = loop._context.status._rates_due = 0.0
        assert await loop._pass() is None

    for _ in range(3):
        await once()  # dispatches the groups, and knows the rates from the second time on
    yield once
    await loop._pipeline.close()
    await queue.remove()


async def test_a_run_in_which_nothing_happens_asks_nothing_of_nats_and_nothing_new_of_the_buffer(look, clients):
    """So many runs that wait for their workers cost no disk."""

    async def traffic(looks):
        async with counted_traffic(clients.buffer) as counts:
            for _ in range(looks):
                await look()
        return [counts]

    (few,), (many,) = await least(lambda: traffic(2)), await least(lambda: traffic(12))
    assert growth(few, many, 10) == {}


async def test_lines_of_a_look_at_a_run_in_which_nothing_happens(look):
    counter = PythonCounter()

    async def lines(looks):
        with counter.counting() as counted:
            for _ in range(looks):
                await look()
        return [counted.lines, counted.calls]

    with counter.tracing():
        few, many = await least(lambda: lines(2)), await least(lambda: lines(12))
    for what, small, large in zip(("lines", "calls"), few, many, strict=True):
        check(f"conductor: {what} a look at a run at rest", growth(small, large, 10))


async def test_a_group_that_is_done_while_its_conductor_is_replaced_is_not_sampled_again(loop, clients, run_id, group, scorer, monkeypatch):
    sampled = group(0)
    sampled.row = DATA.order.row(0)
    await GroupStore(clients.buffer, run_id).put([sampled])
    heads = await clients.bus.bucket(Buckets.HEADS)
    await heads.put(f"{run_id}.version", WeightManifest(term=1, step=0, digest="sha256:" + "0" * 64).SerializeToString())

    async def report_meanwhile(_queue):
        sampled = GroupsSampled(run_id=run_id, kind=TaskKind.TASK_KIND_TRAIN, indexes=[0])
        await clients.bus.publish(subjects.groups(run_id), sampled.SerializeToString())
        async with asyncio.timeout(60):
            while not loop._pipeline._reported:  # noqa: ASYNC110 - it does not signal
                await asyncio.sleep(0.01)

    monkeypatch.setattr(TaskQueue, "purge", report_meanwhile)
    driving = asyncio.create_task(loop.drive())
    async with asyncio.timeout(60):
        while "0.0" not in scorer.asked:  # noqa: ASYNC110 - the scorer counts, it does not signal
            await asyncio.sleep(0.01)
    await cancel_and_wait(driving)


async def test_a_free_run_that_filters_all_it_samples_fails_and_says_why(loop):
    loop._learning_signal = LearningSignal(
        loop._context.record.spec.model_copy(update={"schedule": loop._context.record.spec.schedule.model_copy(update={"mode": "free"})})
    )
    for index in range(256):
        loop._learning_signal.add(LogEntry(index=index, verdict=Verdict.VERDICT_FILTERED, reason="all 2 valid rewards are equal"))
    ending = await loop._pass()
    assert ending.state == "failed"
    assert "none of the last 256 groups could be trained: all 2 valid rewards are equal" in ending.reason


async def test_a_run_whose_step_kills_every_trainer_fails_and_names_the_trainer(loop, clients, run_id, monkeypatch):
    monkeypatch.setattr(loop, "_looks", lambda: True)
    workers, pool = await clients.bus.bucket(f"workers-{run_id}"), loop._context.pool
    for incarnation in map(str, range(9)):
        trainer = WorkerPresence(worker=run_id, role="trainer", incarnation=incarnation, run_id=run_id, reached=0)
        await workers.put(run_id, trainer.to_bytes())
        async with asyncio.timeout(60):
            while trainer not in pool.live.of_role("trainer"):  # noqa: ASYNC110 - a view has no condition of its own
                await asyncio.sleep(0.01)
        ending = await loop._pass()
        assert (ending is None) is (incarnation < "8")
    assert ending.state == "failed"
    assert f"8 trainer processes in a row ended after version -1 and made no other, the last was {run_id}" in ending.reason


async def test_entries_that_the_log_lost_and_the_bitmap_kept_are_asked_for_again(loop, clients, run_id):
    log = ExperienceLog(clients.buffer, run_id)
    term = loop._context.lease.term
    await log.append(term, {index: LogEntry(index=index, verdict=Verdict.VERDICT_TRAIN) for index in range(6)})
    third = (await log.read())[3]
    await clients.buffer.xdel(keys.experience(run_id), third.stream_id)
    loop._missing_report = TrainerProgress(run_id=run_id, step=1, frontier=Frontier(below=2))
    await loop._recover()
    assert loop._schedule.outstanding().keys() == {3}
    assert await log.append(term, {3: LogEntry(index=3)}) == [3], "else it would be sampled for ever and never enter"


async def test_a_run_whose_service_has_not_answered_yet_is_starting(loop, clients, monkeypatch):
    monkeypatch.setattr(loop_module, "_FIRST_CALL_SECONDS", -1.0)
    monkeypatch.setattr(loop, "_looks", lambda: True)
    await TaskQueue(clients.bus, loop._context.run_id).open()
    loop._heads.version = 0
    with loop._first_answers.call("the scorer at grpc://a:1", 10.0):
        await loop._pass()
        status = loop._context.status.status
        assert (status.state, status.waiting_for.partition(",")[0]) == ("starting", "the scorer at grpc://a:1")
    await loop._pass()
    assert loop._context.status.status.state == "running"
    await loop._pipeline.close()
    await TaskQueue(clients.bus, loop._context.run_id).remove()
