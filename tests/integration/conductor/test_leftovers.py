"""What runs that are over left behind goes, whoever left it; nothing else does."""

import pytest

from gradbus.buffer import ExperienceLog, GroupStore, keys, runs_in
from gradbus.bus import Buckets
from gradbus.runs import RunStatus
from gradbus.v1.group_pb2 import LogEntry
from gradbus_conductor.leftovers import Leftovers
from gradbus_conductor.workforce import Workforce


@pytest.fixture
async def sweep(bus, wires):
    """Sweeps with what the buckets hold now."""
    runs, workers, assignments = [await bus.bucket(name) for name in (Buckets.RUNS, Buckets.WORKERS, Buckets.ASSIGNMENTS)]

    async def once():
        async with runs.view() as view, workers.view() as present, assignments.view() as assigned:
            await Leftovers(wires.buffer, view, Workforce(assignments, present, assigned)).sweep()

    yield once
    await assignments.delete("late")


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "running"])
async def test_keys_and_workers_of_a_run_go_once_it_is_over(bus, wires, run_id, group, sweep, state):
    runs, assignments = await bus.bucket(Buckets.RUNS), await bus.bucket(Buckets.ASSIGNMENTS)
    await runs.put(f"{run_id}.status", RunStatus(state=state).to_bytes())
    await assignments.put("late", f'"{run_id}"'.encode())
    await ExperienceLog(wires.buffer, run_id).append(5, {0: LogEntry(index=0)})
    await GroupStore(wires.buffer, run_id).put([group(1)])  # of a worker that woke after the end
    await sweep()
    over = state != "running"
    left = {key.decode() async for key in wires.buffer.scan_iter(match=keys.everything(run_id))}
    assert (left == {keys.term(run_id)}) is over, "the term goes on fencing"
    assert (run_id in await runs_in(wires.buffer)) is not over
    assert (await assignments.get("late") is None) is over


async def test_a_run_that_nobody_knows_is_let_alone(wires, run_id, group, sweep):
    await GroupStore(wires.buffer, run_id).put([group(1)])
    await sweep()
    assert run_id in await runs_in(wires.buffer)
    await GroupStore(wires.buffer, run_id).remove_run()
