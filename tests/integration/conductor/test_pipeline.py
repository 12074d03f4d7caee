"""From the buffer to judged groups, on real servers."""

import asyncio

import pytest

from gradbus.bus import TaskQueue
from gradbus.experience import GroupStore
from gradbus_conductor.groups.pipeline import GroupPipeline, PipelineConfig

pytestmark = pytest.mark.usefixtures("never_late")


@pytest.fixture
async def pipeline(clients, record, run_id):
    queue = TaskQueue(clients.bus, run_id)
    await queue.open()
    config = PipelineConfig(record(), [f'{{"row": {row}}}' for row in range(8)], lambda index: index)
    pipeline = GroupPipeline(clients, config, queue, asyncio.Event())
    yield pipeline
    await pipeline.close()
    await queue.remove()


@pytest.fixture
def store(clients, run_id):
    return GroupStore(clients.buffer, run_id)


async def judged(pipeline, count):
    async with asyncio.timeout(60):
        while len(pipeline.judged) < count:
            await pipeline._wake.wait()
            pipeline._wake.clear()
    return sorted(pipeline.judged)


async def test_what_is_reported_and_wanted_is_judged(pipeline, store, group):
    await store.put([group(0), group(1), group(2)])
    pipeline.report_sampled([0, 1])
    await pipeline.collect({0: 0, 1: 0, 2: 0})
    assert await judged(pipeline, 2) == [0, 1]
    assert pipeline.response_tokens == 12


async def test_a_group_whose_message_was_lost_is_found_in_the_buffer(pipeline, store, group):
    await store.put([group(3)])
    await pipeline.dispatch_missing({3: 0, 4: 0}, [])
    assert await judged(pipeline, 1) == [3]
    assert list(pipeline._dispatcher._dispatched) == [4]  # it lies nowhere


async def test_a_group_is_judged_once_however_often_it_is_reported(pipeline, store, group, scorer):
    await store.put([group(0)])
    for _ in range(3):
        pipeline.report_sampled([0])
        await pipeline.collect({0: 0})
    await judged(pipeline, 1)
    assert scorer.asked == {"0.0": 1, "0.1": 1}


async def test_what_nobody_wants_is_removed_from_the_buffer(pipeline, store, group):
    await store.put([group(0)])
    pipeline.report_sampled([0])
    await pipeline.collect({1: 0})
    assert await store.get([0]) == {}


async def test_a_group_of_another_row_is_removed_and_asked_for_again(pipeline, store, group):
    foreign = group(0)
    foreign.row = 5
    await store.put([foreign])
    pipeline.report_sampled([0])
    await pipeline.collect({0: 0})
    assert await store.get([0]) == {}
    await store.put([group(0)])
    await pipeline.dispatch_missing({0: 0}, [])
    assert await judged(pipeline, 1) == [0]


async def test_a_forgotten_group_can_come_again(pipeline, store, group):
    await store.put([group(0)])
    pipeline.report_sampled([0])
    await pipeline.collect({0: 0})
    await judged(pipeline, 1)
    pipeline.forget([0])
    assert pipeline.judged == {}
    await pipeline.dispatch_missing({0: 0}, [])
    assert await judged(pipeline, 1) == [0]
