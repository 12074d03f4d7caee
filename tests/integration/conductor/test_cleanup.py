"""What finished runs left behind is removed, and nothing else."""

import pytest

from gradbus.buffer import keys
from gradbus.bus import Buckets
from gradbus.control.runs import RunStatus
from gradbus.experience import ExperienceLog, GroupStore, runs_in
from gradbus.v1.group_pb2 import LogEntry
from gradbus_conductor.run.cleanup import FinishedRunCleanup
from gradbus_conductor.workers import WorkerPool


@pytest.fixture
async def sweep(bus, clients):
    """Sweeps with what the buckets hold now."""
    runs, workers, assignments = [await bus.bucket(name) for name in (Buckets.RUNS, Buckets.WORKERS, Buckets.ASSIGNMENTS)]

    async def once():
        async with runs.view() as view, workers.view() as present, assignments.view() as assigned:
            await FinishedRunCleanup(clients.buffer, view, WorkerPool(assignments, present, assigned)).sweep()

    yield once
    await assignments.delete("late")


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "running"])
async def test_keys_and_workers_of_a_run_go_once_it_is_over(bus, clients, run_id, group, sweep, state):
    runs, assignments = await bus.bucket(Buckets.RUNS), await bus.bucket(Buckets.ASSIGNMENTS)
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
