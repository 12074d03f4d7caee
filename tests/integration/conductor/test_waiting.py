"""Runs that wait: which of them are driven, and what becomes of those that are paused or cancelled meanwhile."""

import asyncio
import json

import pytest

from gradbus.bus import Buckets, EventLog
from gradbus.control.runs import RunStatus
from gradbus.errors import FencedError
from gradbus.process import Process
from gradbus_conductor import service
from gradbus_conductor.run import driver
from gradbus_conductor.run import waiting as waiting_runs
from gradbus_conductor.run.driver import Driver
from gradbus_conductor.run.status import RunStatusWriter
from gradbus_conductor.run.waiting import WaitingRuns
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.service import Conductor
from gradbus_conductor.settings import Settings


async def submit_queued(stage, names):
    runs = stage.buckets[Buckets.RUNS]
    await asyncio.gather(*(runs.put(f"{name}.spec", stage.record.model_copy(update={"run_id": name}).to_bytes()) for name in names))


async def test_runs_cancelled_before_they_began_end_without_lease_buffer_or_archive(stage, monkeypatch):
    """Each used to be driven at once, with a lease, a purge, two terms and an archive."""
    names, runs = [f"run-{n:03}" for n in range(200)], stage.buckets[Buckets.RUNS]
    await submit_queued(stage, names)
    await asyncio.gather(*(runs.put(f"{name}.desired", b'"cancelled"') for name in names))
    driven = []

    async def drive(self, lease):
        driven.append(self._record.run_id)
        await asyncio.sleep(60)

    monkeypatch.setattr(Driver, "drive", drive)
    async with stage.conducted():
        await stage.until(lambda: len(stage.runs.names("finished")) == len(names))
        await stage.until(lambda: driven == [stage.run_id])
    assert {stage.runs.state(name) for name in names} == {"cancelled"}
    assert (await stage.status(names[7])).finished_unix_ns
    assert [event.message for event in await EventLog(stage.clients.bus, names[7]).read()] == ["cancelled"]


async def test_runs_paused_before_they_began_show_it_and_keep_no_driver(stage, monkeypatch):
    monkeypatch.setattr(service, "_POLL_SECONDS", 0.02)
    names, runs = [f"run-{n:03}" for n in range(20)], stage.buckets[Buckets.RUNS]
    await submit_queued(stage, names)
    async with stage.conducted():
        await stage.until(lambda: all(stage.runs.state(name) == "queued" for name in names[:8]))  # these are driven
        for name in names:
            await runs.put(f"{name}.desired", b'"paused"')
        await stage.until(lambda: len(stage.runs.names("idle")) == len(names))
        leases = stage.buckets[Buckets.LEASES]
        async with asyncio.timeout(60):
            while any([await leases.get(f"conductor.{name}") for name in names]):  # noqa: ASYNC110 - a bucket has no condition of its own
                await asyncio.sleep(0.02)
        await runs.put(f"{names[3]}.desired", b'"running"')
        await stage.until(lambda: stage.runs.state(names[3]) == "queued")


async def test_older_runs_that_are_resumed_take_the_place_of_younger_ones_at_the_head(stage, monkeypatch):
    monkeypatch.setattr(service, "_MAX_WAITING", 2)
    monkeypatch.setattr(service, "_POLL_SECONDS", 0.02)
    names, runs, leases = [f"run-{n:03}" for n in range(6)], stage.buckets[Buckets.RUNS], stage.buckets[Buckets.LEASES]
    await submit_queued(stage, names)
    for name in names[:2]:
        await runs.put(f"{name}.desired", b'"paused"')

    async def leased():
        return [name for name in (*names, stage.run_id) if await leases.get(f"conductor.{name}")]

    async with stage.conducted(), asyncio.timeout(60):
        while await leased() != names[2:4]:  # noqa: ASYNC110 - a bucket has no condition of its own
            await asyncio.sleep(0.02)
        for name in names[:2]:
            await runs.put(f"{name}.desired", b'"running"')
        while await leased() != names[:2]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_while_nats_is_away_runs_that_wait_to_be_settled_do_not_pile_up(stage, monkeypatch):
    """Each attempt used to leave the rest of its batch behind, and the next one added another batch."""
    monkeypatch.setattr(waiting_runs, "_PARALLEL", 4)
    names, runs = [f"run-{n:03}" for n in range(40)], stage.buckets[Buckets.RUNS]
    await submit_queued(stage, names)
    await asyncio.gather(*(runs.put(f"{name}.desired", b'"cancelled"') for name in names))
    await stage.until(lambda: len(stage.runs.names("unsettled")) == len(names))

    async def no_answer(_writer, _state):
        await asyncio.sleep(0.01)
        raise TimeoutError

    monkeypatch.setattr(RunStatusWriter, "transition", no_answer)
    waiting = WaitingRuns(stage.clients.bus, runs, stage.runs, stage.pool, is_driven=lambda _: False)
    before = len(asyncio.all_tasks())
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await waiting.settle()
    assert len(asyncio.all_tasks()) <= before


@pytest.mark.parametrize("state", ["cancelled", "paused"])
async def test_runs_of_which_one_cannot_be_in_a_batch_are_settled_one_by_one(stage, state):
    names, runs = [f"{stage.run_id}-{n}" for n in range(3)], stage.buckets[Buckets.RUNS]
    await submit_queued(stage, names)
    await runs.put(f"{names[1]}.status", b"of an earlier life")
    await runs.purge(f"{names[1]}.status")
    await asyncio.gather(*(runs.put(f"{name}.desired", json.dumps(state).encode()) for name in names))
    await stage.until(lambda: stage.runs.names("unsettled") == names)
    waiting = WaitingRuns(stage.clients.bus, runs, stage.runs, stage.pool, is_driven=lambda _: False)
    assert await waiting.settle() == 3
    assert [(await stage.status(name)).state for name in names] == [state] * 3
    history = [await EventLog(stage.clients.bus, name).read() for name in names]
    assert [[event.message for event in events] for events in history] == [[state]] * 3


async def test_of_two_conductors_that_settle_and_drive_one_run_one_is_refused(stage):
    runs = stage.buckets[Buckets.RUNS]
    await stage.request("cancelled")
    await stage.until(lambda: stage.runs.place(stage.run_id) == "unsettled")
    waiting = WaitingRuns(stage.clients.bus, runs, stage.runs, stage.pool, is_driven=lambda _: False)
    other = RunStatusWriter(runs, EventLog(stage.clients.bus, stage.run_id), stage.run_id, groups_per_step=1)
    await other.recover()
    assert await waiting.settle() == 1
    with pytest.raises(FencedError):
        await other.transition("starting")
    assert (await stage.status()).state == "cancelled"
    assert await waiting.settle() == 0


async def test_a_run_that_began_is_not_settled_though_the_index_is_behind(stage):
    runs = stage.buckets[Buckets.RUNS]
    await stage.request("cancelled")
    old = runs.snapshot("*.*")
    await old.read()
    await runs.put(f"{stage.run_id}.status", RunStatus(state="paused", prompts="sha256:0").to_bytes())
    index = RunIndex(old)
    assert index.names("unsettled") == [stage.run_id]
    waiting = WaitingRuns(stage.clients.bus, runs, index, stage.pool, is_driven=lambda _: False)
    assert await waiting.settle() == 0
    assert (await stage.status()).state == "paused", "its versions and its log are brought to their end by a driver"
    await stage.until(lambda: stage.runs.place(stage.run_id) == "ending")


async def test_a_conductor_keeps_leases_for_the_head_of_the_queue_alone(stage, monkeypatch):
    monkeypatch.setattr(service, "_MAX_WAITING", 2)
    monkeypatch.setattr(service, "_POLL_SECONDS", 0.02)
    runs, leases = stage.buckets[Buckets.RUNS], stage.buckets[Buckets.LEASES]
    names = [f"run-00{n}" for n in range(4)]
    for name in names:
        await runs.put(f"{name}.spec", stage.record.model_copy(update={"run_id": name}).to_bytes())
    await stage.request("cancelled")  # the youngest
    process = Process("conductor")
    serving = asyncio.create_task(Conductor(stage.clients, Settings(worker_id="conductor")).serve(process))
    await stage.until(lambda: stage.view.get(f"{stage.run_id}.status") and b'"cancelled"' in stage.view.get(f"{stage.run_id}.status"))
    async with asyncio.timeout(60):
        while not all([await leases.get(f"conductor.{name}") for name in names[:2]]):  # noqa: ASYNC110 - each is taken on its own
            await asyncio.sleep(0.02)
    assert [await leases.get(f"conductor.{name}") for name in names[2:]] == [None, None]
    await runs.put("run-000.desired", b'"cancelled"')
    await stage.until(lambda: stage.view.get("run-002.status"))
    process.stopping.set()
    await serving


async def test_a_run_paused_before_it_began_takes_no_trainer_until_it_is_resumed(stage, monkeypatch):
    monkeypatch.setattr(driver, "_POLL_SECONDS", 0.02)
    await stage.request("paused")
    await stage.until(lambda: stage.view.get(f"{stage.run_id}.desired") == b'"paused"')
    await stage.trainer()
    driving = asyncio.create_task(stage.drive())
    await stage.waits("paused")
    assert await stage.assigned() is None
    await stage.trained()
    await stage.request("running")
    await asyncio.wait_for(driving, 60)
    assert (await stage.status()).state == "succeeded"
