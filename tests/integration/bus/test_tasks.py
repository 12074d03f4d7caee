"""The work queue on a real NATS."""

import asyncio

import pytest

from gradbus.bus import Bus, BusSettings, TaskQueue, subjects
from gradbus.v1.task_pb2 import Task


@pytest.fixture
async def queue(bus, unique):
    queue = TaskQueue(bus, unique)
    await queue.open()
    yield queue
    await queue.remove()


def tasks(count):
    return [Task(task_id=str(n)) for n in range(count)]


@pytest.fixture
def stored(eventually):
    async def wait(queue, count):
        async def check():
            return await queue.waiting() == count

        await eventually(check)

    return wait


async def test_each_task_goes_to_one_worker(bus, queue, unique, stored):
    await queue.publish(tasks(40))
    await stored(queue, 40)
    other = TaskQueue(bus, unique)
    halves = await asyncio.gather(*(each.fetch(10) for each in (queue, other, queue, other)))
    assert sorted(int(delivery.task.task_id) for half in halves for delivery in half) == list(range(40))


async def test_more_workers_than_nats_expects_wait_for_tasks_at_a_time(bus, queue, unique, stored):
    """NATS lets 512 wait if it is not told: it refused the others at once, and they asked again all the time."""
    workers = [TaskQueue(bus, unique) for _ in range(600)]
    fetches = [asyncio.create_task(worker.fetch(1)) for worker in workers]

    async def waiting():
        info = await bus.jetstream.consumer_info(subjects.PROMPTS_STREAM, f"rollout-{unique}")
        return info.num_waiting

    most = 0
    while not all(fetch.done() for fetch in fetches):
        most = max(most, await waiting())
        await asyncio.sleep(0.05)
    assert most > 512
    info = await bus.jetstream.consumer_info(subjects.PROMPTS_STREAM, f"rollout-{unique}")
    assert info.config.max_waiting >= 100_000


async def test_a_fetch_that_is_refused_at_once_takes_a_while_all_the_same(bus, unique, monkeypatch):
    queue, slept, sleep = TaskQueue(bus, unique), [], asyncio.sleep
    await queue.open()
    await queue.remove()

    async def sleeping(seconds, *result):
        slept.append(seconds)
        await sleep(0.0, *result)

    monkeypatch.setattr("gradbus.bus.tasks.asyncio.sleep", sleeping)
    assert await queue.fetch(1) == []
    assert any(seconds > 0.1 for seconds in slept)


async def test_a_fetch_of_nothing_keeps_its_subscription_whoever_says_that_the_time_is_over(bus, queue, monkeypatch):
    """On a busy machine the client's clock ends a fetch before the server's answer: each made a subscription that was never ended."""
    subscription = queue._subscription

    async def late(*_, **__):
        raise TimeoutError

    assert await queue.fetch(4) == []
    monkeypatch.setattr(type(subscription), "fetch", late)
    assert await queue.fetch(4) == []
    assert queue._subscription is subscription


async def test_a_task_is_acknowledged_at_receipt(bus, queue, unique, stored, eventually):
    await queue.publish(tasks(3))
    await stored(queue, 3)
    assert len(await queue.fetch(10)) == 3
    info = await bus.jetstream.consumer_info(subjects.PROMPTS_STREAM, f"rollout-{unique}")
    assert info.config.max_deliver == 1

    async def is_gone():
        info = await bus.jetstream.stream_info(subjects.PROMPTS_STREAM, subjects_filter=subjects.prompts(unique))
        return not info.state.subjects

    await eventually(is_gone)
    assert await queue.waiting() == 0


async def test_a_worker_that_dies_after_its_fetch_gets_no_task_delivered_again(nats_url, queue, unique, stored):
    await queue.publish(tasks(1))
    await stored(queue, 1)
    dying = await Bus.connect(BusSettings(nats_url), "dying")
    assert len(await TaskQueue(dying, unique).fetch(1)) == 1
    await dying.client.close()
    assert await queue.fetch(1) == []


async def test_an_empty_queue_answers_with_nothing(queue):
    assert await queue.fetch(5) == []
    assert await queue.waiting() == 0


async def test_tasks_wait_before_any_worker_has_come(bus, unique, stored):
    """A worker is the first to fetch, minutes later if its engine is large."""
    queue, other = TaskQueue(bus, unique), TaskQueue(bus, f"{unique}-2")
    assert await queue.waiting() == 0
    await queue.publish(tasks(3))
    await other.publish(tasks(1))
    await stored(queue, 3)
    assert len(await TaskQueue(bus, unique).fetch(2)) == 2
    assert await queue.waiting() == 1
    await queue.remove()
    await other.remove()
    assert await queue.waiting() == 0


async def test_purging_one_run_leaves_the_others(bus, queue, unique, stored):
    other = TaskQueue(bus, f"{unique}-2")
    await other.open()
    await queue.publish(tasks(2))
    await other.publish(tasks(3))
    await stored(queue, 2)
    await stored(other, 3)
    await queue.purge()
    assert (await queue.waiting(), await other.waiting()) == (0, 3)
    await other.remove()
    await other.remove()


async def test_workers_fetch_again_after_the_server_was_killed(own_nats, own_bus):
    queue = TaskQueue(own_bus, "run")
    await queue.open()
    own_nats.kill()
    own_nats.start()
    async with asyncio.timeout(60):
        found = []
        while not found:
            await queue.publish(tasks(1))
            found = await queue.fetch(1)
    assert found[0].task.task_id == "0"
