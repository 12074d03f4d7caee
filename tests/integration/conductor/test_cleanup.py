"""What finished runs left behind is removed, and nothing else."""

import time

import pytest

from gradbus.buffer import keys
from gradbus.bus import Buckets
from gradbus.control.runs import RunStatus
from gradbus.experience import ExperienceLog, GroupStore, runs_in
from gradbus.v1.group_pb2 import LogEntry
from gradbus_conductor.runs.cleanup import FinishedRunCleanup
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.runs.retention import RunRetention
from gradbus_conductor.workers import WorkerPool


@pytest.fixture
async def sweep(bus, clients):
    """Sweeps with what the buckets hold now, or with an index that is behind."""
    runs, workers, assignments = [await bus.bucket(name) for name in (Buckets.RUNS, Buckets.WORKERS, Buckets.ASSIGNMENTS)]

    async def once(index=None, **limits):
        async with runs.view() as view, workers.view() as present, assignments.view() as assigned:
            await FinishedRunCleanup(
                clients.buffer, runs, index or RunIndex(view), WorkerPool(assignments, present, assigned), RunRetention(**limits)
            ).sweep()

    yield once
    await assignments.delete("late")


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "running"])
async def test_keys_and_workers_of_a_run_go_once_it_is_over(bus, clients, run_id, record, group, sweep, state):
    runs, assignments = await bus.bucket(Buckets.RUNS), await bus.bucket(Buckets.ASSIGNMENTS)
    await runs.put(f"{run_id}.spec", record().to_bytes())
    await runs.put(f"{run_id}.status", RunStatus(state=state).to_bytes())
    await assignments.put("late", f'"{run_id}"'.encode())
    await ExperienceLog(clients.buffer, run_id).append(5, {0: LogEntry(index=0)})
    await GroupStore(clients.buffer, run_id).put([group(1)])  # of a worker that woke after the end
    await sweep()
    over = state != "running"
    left = {key.decode() async for key in clients.buffer.scan_iter(match=keys.everything(run_id))}
    assert (left == {keys.term(run_id)}) is over, "the term goes on fencing"
    assert (run_id in await runs_in(clients.buffer)) is not over
    assert (await assignments.get("late") is None) is over


async def test_a_run_that_nobody_knows_is_let_alone(clients, run_id, group, sweep):
    await GroupStore(clients.buffer, run_id).put([group(1)])
    await sweep()
    assert run_id in await runs_in(clients.buffer)
    await GroupStore(clients.buffer, run_id).remove_run()


async def test_a_worker_of_a_run_that_is_gone_is_freed(bus, run_id, sweep):
    assignments = await bus.bucket(Buckets.ASSIGNMENTS)
    await assignments.put("late", f'"{run_id}"'.encode())
    await sweep()
    assert await assignments.get("late") is None


async def test_a_worker_of_a_run_so_new_that_the_view_lacks_it_is_kept(bus, run_id, record, sweep):
    runs, assignments = await bus.bucket(Buckets.RUNS), await bus.bucket(Buckets.ASSIGNMENTS)
    await runs.put(f"{run_id}.spec", record().to_bytes())
    await assignments.put("late", f'"{run_id}"'.encode())
    await sweep(RunIndex(runs.snapshot()))
    assert await assignments.get("late") is not None


async def test_retention_requests_the_deletion_of_runs_beyond_its_limits(bus, record, sweep):
    runs = await bus.bucket(Buckets.RUNS)
    async with runs.view() as left:
        for key in list(left.entries):
            await runs.delete(key)
    now, names = time.time_ns(), [f"run-{n}" for n in range(5)]
    for age, name in enumerate(reversed(names)):
        await runs.put(f"{name}.spec", record().to_bytes())
        state = "running" if name == "run-0" else "succeeded"
        await runs.put(f"{name}.status", RunStatus(state=state, finished_unix_ns=now - age * 86_400 * 10**9).to_bytes())
    await runs.put("run-1.desired", b'"paused"')

    async def deleted():
        return [name for name in names if (entry := await runs.get(f"{name}.desired")) and entry.value == b'"deleted"']

    await sweep()
    assert await deleted() == [], "by default all are kept"
    await sweep(days=2.5)
    assert await deleted() == ["run-1"], "the oldest has not ended"
    await sweep(most=2)
    assert await deleted() == ["run-1", "run-2"]
