"""The groups that the live log yields, and its reports when groups do not arrive."""

import asyncio

import pytest

from gradbus.algorithms import Algorithm
from gradbus.buffer import keys
from gradbus.bus import subjects
from gradbus.experience import ExperienceLog
from gradbus.experience.records import seal
from gradbus.spec import AlgorithmSpec
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_trainer.step.collector import collector_for
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.step.live_log import LiveLog, missing_reporter

from .conftest import make_entry


def new_reader(bus, log, run_id, collector, frontier):
    return LiveLog(run_id, log, Algorithm(AlgorithmSpec(), 8), collector, missing_reporter(bus, run_id, frontier))


@pytest.fixture
def frontier():
    return Frontier()


@pytest.fixture
def log(buffer, run_id):
    return ExperienceLog(buffer, run_id)


@pytest.fixture
def reader(bus, log, run_id, make_spec, frontier):
    return new_reader(bus, log, run_id, collector_for(make_spec(), frontier), frontier)


@pytest.fixture
async def missing(bus, run_id):
    """The trainer's reports of missing groups."""
    reports = asyncio.Queue()

    async def note(payload):
        reports.put_nowait(TrainerProgress.FromString(payload))

    async with bus.subscribed(subjects.missing(run_id), note):
        await bus.client.flush()
        yield reports


async def add_raw(buffer, run_id, index, record, stream_id="*"):
    await buffer.xadd(keys.experience(run_id), {"i": index, "r": record}, id=stream_id)


def indexes(items):
    return [item.entry.index for item in items]


async def test_a_step_waits_for_its_groups_and_gives_them_with_their_digests(reader, log, frontier):
    async with reader.reading():
        await log.append(1, {1: make_entry(1)})
        waiting = asyncio.create_task(reader.next_step(0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await log.append(1, {0: make_entry(0)})
        items = await asyncio.wait_for(waiting, 60)
    assert indexes(items) == [0, 1]
    assert [item.digest for item in items] == [stored.digest for stored in sorted(await log.read(), key=lambda stored: stored.index)]
    assert all(item.size_bytes > len(item.entry.group) for item in items)


async def test_corrupt_entries_are_never_yielded_and_are_reported_to_the_conductor(reader, log, buffer, run_id, frontier, missing):
    frontier.add(0, [(7, "trained before")])
    flipped = bytearray(seal(make_entry(0).SerializeToString()))
    flipped[20] ^= 1
    await add_raw(buffer, run_id, 0, bytes(flipped))
    await add_raw(buffer, run_id, 0, b"no record at all")
    await add_raw(buffer, run_id, 0, seal(make_entry(5).SerializeToString()))
    await log.append(1, {1: make_entry(1)})
    async with reader.reading():
        waiting = asyncio.create_task(reader.next_step(0))
        progress = await asyncio.wait_for(missing.get(), 60)
        assert not waiting.done()
        await add_raw(buffer, run_id, 0, seal(make_entry(0).SerializeToString()))
        items = await asyncio.wait_for(waiting, 60)
    assert (progress.step, progress.frontier) == (0, frontier.to_message())
    assert indexes(items) == [0, 1]
    assert items[0].entry == make_entry(0)


async def test_a_log_that_was_lost_and_made_anew_is_read_from_its_start(reader, buffer, run_id, frontier, missing):
    await add_raw(buffer, run_id, 0, seal(make_entry(0).SerializeToString()), "9999999999999-0")
    async with reader.reading():
        waiting = asyncio.create_task(reader.next_step(0))
        await asyncio.wait_for(missing.get(), 60)
        await buffer.delete(keys.experience(run_id))
        for index in (1, 0):  # ids below what was read before
            await add_raw(buffer, run_id, index, seal(make_entry(index).SerializeToString()), f"5-{2 - index}")
        assert indexes(await asyncio.wait_for(waiting, 60)) == [0, 1]


async def test_it_asks_again_until_the_groups_come(reader, log, frontier, missing):
    async with reader.reading():
        waiting = asyncio.create_task(reader.next_step(0))
        asked = [await asyncio.wait_for(missing.get(), 60) for _ in range(2)]
        assert [progress.step for progress in asked] == [0, 0]
        await log.append(1, {index: make_entry(index) for index in range(2)})
        assert indexes(await asyncio.wait_for(waiting, 60)) == [0, 1]


async def test_a_reader_that_failed_raises_instead_of_waiting(bus, buffer, run_id, make_spec, frontier):
    class Broken:
        def add(self, item):
            raise ValueError("a fault of ours")

        def take(self, step):
            return None

        def lacking(self, step):
            return ""

    reader = new_reader(bus, ExperienceLog(buffer, run_id), run_id, Broken(), frontier)
    await ExperienceLog(buffer, run_id).append(1, {0: make_entry(0)})
    with pytest.raises(ValueError, match="a fault of ours"):
        async with reader.reading():
            await asyncio.wait_for(reader.next_step(0), 60)


async def test_a_buffer_that_is_away_is_waited_for(bus, buffer, run_id, make_spec, frontier):
    log = ExperienceLog(buffer, run_id)
    reader = new_reader(bus, log, run_id, collector_for(make_spec(), frontier), frontier)
    await buffer.set(keys.experience(run_id), "not a stream: every read fails")
    async with reader.reading():
        waiting = asyncio.create_task(reader.next_step(0))
        await asyncio.sleep(0.5)
        await buffer.delete(keys.experience(run_id))
        await log.append(1, {index: make_entry(index) for index in range(2)})
        assert indexes(await asyncio.wait_for(waiting, 60)) == [0, 1]
