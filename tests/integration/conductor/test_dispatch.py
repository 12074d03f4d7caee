"""Dispatch and redispatch on a real queue. A test lets time pass by moving the times of dispatch back."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gradbus.bus import TaskQueue
from gradbus.control.runs import WorkerPresence
from gradbus_conductor.groups.dispatch import Dispatcher
from gradbus_conductor.groups.task_kinds import EvaluationTasks
from gradbus_conductor.groups.traces import GroupTraces


@pytest.fixture
async def queue(bus, run_id):
    queue = TaskQueue(bus, run_id)
    yield queue
    await queue.remove()


@pytest.fixture
def dispatcher(queue, run_id):
    return Dispatcher(queue, run_id, GroupTraces(run_id, 0.0))


def worker(claims=(), incarnation="1", **fields):
    return WorkerPresence(worker="w", role="rollout", incarnation=incarnation, claims=list(claims), **fields)


def pass_time(dispatcher, seconds):
    for group in dispatcher._dispatched.values():
        group.last -= seconds
        group.since -= seconds


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
    await dispatcher.dispatch(GROUPS, workers=1)
    tasks = {task.version: [(group.index, group.row) for group in task.groups] for task in await fetched(queue, 3)}
    assert tasks == {0: [(0, 10), (1, 11)], 1: [(2, 12)]}


async def test_groups_are_divided_among_the_workers_and_a_task_is_bounded(dispatcher, queue):
    await dispatcher.dispatch([(index, 0, index) for index in range(100)], workers=2)
    sizes = [len(task.groups) for task in await fetched(queue, 100)]
    assert max(sizes) == 32
    await dispatcher.dispatch([(index, 0, index) for index in range(8)], workers=4)
    assert [len(task.groups) for task in await fetched(queue, 8)] == [2, 2, 2, 2]


async def test_a_group_never_dispatched_is_overdue_and_one_just_dispatched_is_not(dispatcher):
    assert dispatcher.overdue(WANTED, []) == [0, 1, 2]
    await dispatcher.dispatch(GROUPS, 1)
    assert dispatcher.overdue(WANTED, []) == []


async def test_a_claimed_group_is_never_overdue(dispatcher):
    await dispatcher.dispatch(GROUPS, 1)
    pass_time(dispatcher, 10_000)
    assert dispatcher.overdue(WANTED, [worker([0, 2])]) == [1]


async def test_a_group_whose_claimant_is_gone_is_overdue_at_once(dispatcher):
    await dispatcher.dispatch(GROUPS, 1)
    assert dispatcher.overdue(WANTED, [worker([0, 1])]) == []
    assert dispatcher.overdue(WANTED, []) == [0, 1]


async def test_a_restarted_worker_has_let_its_claims_go(dispatcher):
    await dispatcher.dispatch(GROUPS, 1)
    dispatcher.overdue(WANTED, [worker([0], incarnation="1")])
    assert dispatcher.overdue(WANTED, [worker([], incarnation="2")]) == [0]


async def test_the_redispatch_delay_doubles_up_to_a_bound(dispatcher, queue):
    waits = []
    for _ in range(6):
        await dispatcher.dispatch([(0, 0, 0)], 1)
        await fetched(queue, 1)
        for seconds in (1.0, 2.1, 3.0, 4.1, 7.0, 8.1, 15.0, 16.1, 19.0, 20.1):
            dispatcher._dispatched[0].last = asyncio.get_running_loop().time() - seconds
            if dispatcher.overdue({0: 0}, []):
                waits.append(seconds)
                break
    assert waits == [2.1, 4.1, 8.1, 16.1, 20.1, 20.1]


async def test_thousands_of_attempts_do_no_harm(dispatcher):
    await dispatcher.dispatch([(0, 0, 0)], 1)
    dispatcher._dispatched[0].attempts = 5000
    assert dispatcher.overdue({0: 0}, []) == []


async def test_nothing_is_dispatched_again_while_tasks_lie_in_the_queue(dispatcher, queue):
    await dispatcher.dispatch(GROUPS, 1)
    async with asyncio.timeout(60):
        while await queue.waiting() != 2:  # noqa: ASYNC110 - the server counts, it does not signal
            await asyncio.sleep(0.01)
    pass_time(dispatcher, 100)
    await dispatcher.redispatch([0, 1, 2], WANTED, ROWS, 1)
    assert await queue.waiting() == 2
    assert dispatcher.overdue(WANTED, []) == []
    # Nobody could work on them, so nobody is late with them.
    assert dispatcher.age(0) < 50


async def test_only_groups_dispatched_before_are_logged_as_redispatched(dispatcher, queue):
    with capture_logs() as logs:
        await dispatcher.redispatch(dispatcher.overdue({0: 0}, []), {0: 0}, ROWS, 1)
        await fetched(queue, 1)
        assert logs == []
        pass_time(dispatcher, 100)
        await dispatcher.redispatch(dispatcher.overdue(WANTED, []), WANTED, ROWS, 1)
    assert [(line["event"], line["groups"], line["lowest"]) for line in logs] == [("groups_redispatched", 1, 0)]


async def test_what_was_fetched_and_lost_is_dispatched_again_and_keeps_its_age(dispatcher, queue):
    await dispatcher.dispatch(GROUPS, 1)
    await fetched(queue, 3)
    pass_time(dispatcher, 100)
    await dispatcher.redispatch(dispatcher.overdue(WANTED, []), WANTED, ROWS, 1)
    assert sorted(group.row for task in await fetched(queue, 3) for group in task.groups) == [10, 11, 12]
    assert dispatcher.overdue(WANTED, []) == []
    assert dispatcher.age(0) >= 100


async def test_a_forgotten_group_has_no_age_and_an_age_can_be_reset(dispatcher):
    await dispatcher.dispatch(GROUPS, 1)
    pass_time(dispatcher, 100)
    dispatcher.forget([0])
    dispatcher.reset_age([0, 1])
    assert dispatcher.age(0) == 0.0
    assert dispatcher.age(1) < 50
    assert dispatcher.age(2) >= 100


async def test_claims_of_an_evaluation_are_those_of_its_version(queue, run_id):
    dispatcher = Dispatcher(queue, run_id, GroupTraces(run_id, 0.0, EvaluationTasks(4)), EvaluationTasks(4))
    await dispatcher.dispatch([(0, 4, 0), (1, 4, 1)], 1)
    pass_time(dispatcher, 10_000)
    assert dispatcher.overdue({0: 4, 1: 4}, [worker([1], evaluation_claims=[(4, 0), (3, 1)])]) == [1]
