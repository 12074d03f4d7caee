"""The contract between the train loop and every source of steps. Add a source to `source` to test it."""

import asyncio

import pytest

from gradbus.algorithms import algorithm_of
from gradbus.experience.archive import ArchiveWriter
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus_trainer.replay.archived_log import ArchivedLog
from gradbus_trainer.step.collector import collector_for
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.step.groups import LoggedGroup
from gradbus_trainer.step.live_log import LiveLog, missing_reporter

from .conftest import GROUPS, make_entry


class ListSource:
    """The steps of a log that is complete."""

    def __init__(self, groups, collector):
        self._collector = collector
        for group in groups:
            collector.add(group)

    @property
    def waiting(self):
        return self._collector.size

    async def next_step(self, step):
        return self._collector.take(step)


async def list_source(run, spec, frontier):
    algorithm = algorithm_of(spec)
    return ListSource([LoggedGroup.of(stored, algorithm) for stored in await run.log.read()], collector_for(spec, frontier))


@pytest.fixture(params=["live", "list", "archive"])
async def source(request, new_run, make_spec):
    """Over a log of three steps, written in the reverse order."""
    run, frontier = await new_run(make_spec()), Frontier()
    await run.write(reversed(range(3 * GROUPS)))
    if request.param == "archive":
        await ArchiveWriter(run.objects, run.log, run.run_id).finish()
        spec = run.record.spec
        yield ArchivedLog(run.objects, run.run_id, algorithm_of(spec), collector_for(spec, frontier)), frontier
        return
    if request.param == "list":
        yield await list_source(run, run.record.spec, frontier), frontier
        return
    missing = missing_reporter(run.bus, run.run_id, frontier)
    algorithm = algorithm_of(run.record.spec)
    live = LiveLog(run.run_id, run.log, algorithm, collector_for(run.record.spec, frontier), missing)
    async with live.reading():
        yield live, frontier


async def test_steps_come_whole_in_order_and_decoded(source):
    steps, frontier = source
    for step in range(3):
        groups = await asyncio.wait_for(steps.next_step(step), 60)
        assert [group.entry.index for group in groups] == list(range(GROUPS * step, GROUPS * (step + 1)))
        assert [group.entry for group in groups] == [make_entry(group.entry.index) for group in groups]
        assert all(group.decoded.rows and group.digest and group.size_bytes for group in groups)
        frontier.add(step, [(group.entry.index, group.digest) for group in groups])
        assert steps.waiting == GROUPS * (2 - step)


async def checkpoint(run):
    return (await run.stub.GetCheckpoint(pb.GetCheckpointRequest(run_id=run.run_id))).manifest


async def test_a_run_over_a_list_ends_in_the_bits_of_the_live_run(new_run, make_spec):
    live, replayed = await new_run(make_spec()), await new_run(make_spec())
    for run in (live, replayed):
        await run.write(range(12))
    await live.train()
    await replayed.train(await list_source(replayed, replayed.record.spec, Frontier()))
    ends = [await checkpoint(run) for run in (live, replayed)]
    assert ends[0].weights.digest == ends[1].weights.digest
    assert ends[0].frontier == ends[1].frontier


async def test_a_source_that_ends_early_ends_the_loop_with_its_checkpoints_committed(new_run, make_spec):
    run = await new_run(make_spec())
    await run.write(range(5 * GROUPS))
    await run.train(await list_source(run, run.record.spec, Frontier()))
    heads = (await run.stub.GetHeads(pb.GetHeadsRequest(run_id=run.run_id))).heads
    assert (heads.checkpoint_step, heads.version_step) == (4, 5)
