"""Dispatching again on a real queue. Time is the dispatcher's own: a test turns back when a group was sent."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gradbus.bus import TaskQueue
from gradbus.control.runs import WorkerPresence
from gradbus_conductor.groups.dispatch import Dispatcher
from gradbus_conductor.groups.traces import GroupTraces


@pytest.fixture
async def queue(bus, run_id):
    queue = TaskQueue(bus, run_id)
    await queue.open()
    yield queue
    await queue.remove()


@pytest.fixture
def dispatcher(queue, run_id):
    return Dispatcher(queue, run_id, GroupTraces(run_id, 0.0))


def worker(claims=(), incarnation="1", **fields):
    return WorkerPresence(worker="w", role="rollout", incarnation=incarnation, claims=list(claims), **fields)


def pass_time(dispatcher, seconds):
    for sent in dispatcher._sent.values():
        sent.at -= seconds
        sent.since -= seconds


async def fetched(queue, groups):
    found = []
    async with asyncio.timeout(60):
        while sum(len(task.groups) for task in found) < groups:
            found += [delivery.task for delivery in await queue.fetch(100)]
    return found


WANTED = {0: 0, 1: 0, 2: 1}
ROWS = {0: 10, 1: 11, 2: 12}
GROUPS = [(index, version, ROWS[index]) for index, version in WANTED.items()]


async def test_a_task_carries_one_version_and_its_rows(dispatcher, queue):
    await dispatcher.send(GROUPS, workers=1)
    tasks = {task.version: [(group.index, group.row) for group in task.groups] for task in await fetched(queue, 3)}
    assert tasks == {0: [(0, 10), (1, 11)], 1: [(2, 12)]}


async def test_groups_are_spread_over_the_workers_and_a_task_is_bounded(dispatcher, queue):
    await dispatcher.send([(index, 0, index) for index in range(100)], workers=2)
    sizes = [len(task.groups) for task in await fetched(queue, 100)]
    assert max(sizes) == 32
    await dispatcher.send([(index, 0, index) for index in range(8)], workers=4)
    assert [len(task.groups) for task in await fetched(queue, 8)] == [2, 2, 2, 2]


async def test_what_was_never_sent_is_overdue_and_what_was_just_sent_is_not(dispatcher):
    assert dispatcher.overdue(WANTED, []) == [0, 1, 2]
    await dispatcher.send(GROUPS, 1)
    assert dispatcher.overdue(WANTED, []) == []


async def test_a_claimed_group_is_never_overdue(dispatcher):
    await dispatcher.send(GROUPS, 1)
    pass_time(dispatcher, 10_000)
    assert dispatcher.overdue(WANTED, [worker([0, 2])]) == [1]


async def test_a_group_whose_claimant_is_gone_is_overdue_at_once(dispatcher):
    await dispatcher.send(GROUPS, 1)
    assert dispatcher.overdue(WANTED, [worker([0, 1])]) == []
    assert dispatcher.overdue(WANTED, []) == [0, 1]


async def test_a_restarted_worker_has_let_its_claims_go(dispatcher):
    await dispatcher.send(GROUPS, 1)
    dispatcher.overdue(WANTED, [worker([0], incarnation="1")])
    assert dispatcher.overdue(WANTED, [worker([], incarnation="2")]) == [0]


async def test_patience_doubles_up_to_a_bound(dispatcher, queue):
    waits = []
    for _ in range(6):
        await dispatcher.send([(0, 0, 0)], 1)
        await fetched(queue, 1)
        for seconds in (1.0, 2.1, 3.0, 4.1, 7.0, 8.1, 15.0, 16.1, 19.0, 20.1):
            dispatcher._sent[0].at = asyncio.get_running_loop().time() - seconds
            if dispatcher.overdue({0: 0}, []):
                waits.append(seconds)
                break
    assert waits == [2.1, 4.1, 8.1, 16.1, 20.1, 20.1]


async def test_thousands_of_attempts_do_no_harm(dispatcher):
    await dispatcher.send([(0, 0, 0)], 1)
    dispatcher._sent[0].attempts = 5000
    assert dispatcher.overdue({0: 0}, []) == []


async def test_nothing_is_sent_again_while_tasks_lie_in_the_queue(dispatcher, queue):
    await dispatcher.send(GROUPS, 1)
    async with asyncio.timeout(60):
        while await queue.waiting() != 2:  # noqa: ASYNC110 - the server counts, it does not signal
            await asyncio.sleep(0.01)
    pass_time(dispatcher, 100)
    await dispatcher.send_again([0, 1, 2], WANTED, ROWS, 1)
    assert dispatcher.again == 0
    assert await queue.waiting() == 2
    assert dispatcher.overdue(WANTED, []) == []
    # Nobody could work on them, so nobody is late with them.
    assert dispatcher.age(0) < 50


async def test_only_what_was_sent_before_is_told_as_dispatched_again(dispatcher, queue):
    with capture_logs() as logs:
        await dispatcher.send_again(dispatcher.overdue({0: 0}, []), {0: 0}, ROWS, 1)
        await fetched(queue, 1)
        assert (logs, dispatcher.again) == ([], 0)
        pass_time(dispatcher, 100)
        await dispatcher.send_again(dispatcher.overdue(WANTED, []), WANTED, ROWS, 1)
    assert [(line["event"], line["groups"], line["first"]) for line in logs] == [("dispatched_again", 1, 0)]
    assert dispatcher.again == 1


async def test_what_was_fetched_and_lost_is_sent_again_and_keeps_its_age(dispatcher, queue):
    await dispatcher.send(GROUPS, 1)
    await fetched(queue, 3)
    pass_time(dispatcher, 100)
    await dispatcher.send_again(dispatcher.overdue(WANTED, []), WANTED, ROWS, 1)
    assert dispatcher.again == 3
    assert sorted(group.row for task in await fetched(queue, 3) for group in task.groups) == [10, 11, 12]
    assert dispatcher.overdue(WANTED, []) == []
    assert dispatcher.age(0) >= 100


async def test_a_settled_group_has_no_age_and_an_excused_one_starts_anew(dispatcher):
    await dispatcher.send(GROUPS, 1)
    pass_time(dispatcher, 100)
    dispatcher.settled([0])
    dispatcher.excuse([0, 1])
    assert dispatcher.age(0) == 0.0
    assert dispatcher.age(1) < 50
    assert dispatcher.age(2) >= 100


async def test_claims_of_an_evaluation_are_those_of_its_version(queue, run_id):
    dispatcher = Dispatcher(queue, run_id, GroupTraces(run_id, 0.0, 4), evaluated=4)
    await dispatcher.send([(0, 4, 0), (1, 4, 1)], 1)
    pass_time(dispatcher, 10_000)
    assert dispatcher.overdue({0: 4, 1: 4}, [worker([1], evaluation_claims=[(4, 0), (3, 1)])]) == [1]
