"""From the buffer to judged groups, over real wires."""

import asyncio

import pytest

from gradbus.bus import TaskQueue
from gradbus.experience import GroupStore
from gradbus_conductor.groups.pipeline import Sampling, SamplingWork


@pytest.fixture
async def sampling(clients, record, run_id):
    queue = TaskQueue(clients.bus, run_id)
    await queue.open()
    work = SamplingWork(record(), [f'{{"row": {row}}}' for row in range(8)], lambda index: index)
    sampling = Sampling(clients, work, queue, asyncio.Event())
    yield sampling
    await sampling.close()
    await queue.remove()


@pytest.fixture
def store(clients, run_id):
    return GroupStore(clients.buffer, run_id)


async def judged(sampling, count):
    async with asyncio.timeout(60):
        while len(sampling.judged) < count:
            await sampling._wake.wait()
            sampling._wake.clear()
    return sorted(sampling.judged)


async def test_what_is_signalled_and_wanted_is_judged(sampling, store, group):
    await store.put([group(0), group(1), group(2)])
    sampling.signalled([0, 1])
    await sampling.collect({0: 0, 1: 0, 2: 0})
    assert await judged(sampling, 2) == [0, 1]
    assert sampling.tokens == 12


async def test_a_group_whose_message_was_lost_is_found_in_the_buffer(sampling, store, group):
    await store.put([group(3)])
    await sampling.repair({3: 0, 4: 0}, [])
    assert await judged(sampling, 1) == [3]
    assert list(sampling._dispatcher._sent) == [4]  # it lies nowhere


async def test_a_group_is_judged_once_however_often_it_is_signalled(sampling, store, group, scorer):
    await store.put([group(0)])
    for _ in range(3):
        sampling.signalled([0])
        await sampling.collect({0: 0})
    await judged(sampling, 1)
    assert scorer.asked == {"0.0": 1, "0.1": 1}


async def test_what_nobody_wants_is_removed_from_the_buffer(sampling, store, group):
    await store.put([group(0)])
    sampling.signalled([0])
    await sampling.collect({1: 0})
    assert await store.get([0]) == {}


async def test_a_group_of_another_row_is_removed_and_asked_for_again(sampling, store, group):
    foreign = group(0)
    foreign.row = 5
    await store.put([foreign])
    sampling.signalled([0])
    await sampling.collect({0: 0})
    assert await store.get([0]) == {}
    await store.put([group(0)])
    await sampling.repair({0: 0}, [])
    assert await judged(sampling, 1) == [0]


async def test_a_settled_group_is_forgotten_and_can_come_again(sampling, store, group):
    await store.put([group(0)])
    sampling.signalled([0])
    await sampling.collect({0: 0})
    await judged(sampling, 1)
    sampling.settled([0])
    assert sampling.judged == {}
    await sampling.repair({0: 0}, [])
    assert await judged(sampling, 1) == [0]
