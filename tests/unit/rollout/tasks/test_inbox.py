"""The tasks of a worker: the lowest version first, no group twice, and claims for all of them."""

from hypothesis import given
from hypothesis import strategies as st

from gradbus.bus import Delivery
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout.tasks.inbox import TaskInbox

TRAIN, EVALUATION = TaskKind.TASK_KIND_TRAIN, TaskKind.TASK_KIND_EVALUATION


def task(version, indexes, kind=TRAIN):
    groups = [GroupTask(index=index, row=index) for index in indexes]
    return Delivery(Task(task_id="t", run_id="run", kind=kind, version=version, groups=groups), 1000 + version)


def everything(_task):
    return True


tasks = st.lists(
    st.builds(
        task, st.integers(0, 4), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), st.sampled_from((TRAIN, EVALUATION))
    ),
    max_size=12,
)


@given(tasks, st.integers(0, 5))
def test_the_lowest_ready_version_runs_first_and_of_it_evaluation(given_tasks, newest):
    inbox = TaskInbox(32)
    for one in given_tasks:
        inbox.add(one)
    started = []
    while (one := inbox.lowest(lambda one: one.version <= newest)) is not None:
        inbox.start(one)
        started.append((one.task.version, one.task.kind != EVALUATION))
    assert started == sorted(started)
    assert {version for version, _ in started} == {one.task.version for one in given_tasks if one.task.version <= newest}


@given(tasks, st.data())
def test_a_group_of_a_version_is_claimed_once_whoever_sends_it_again(given_tasks, data):
    inbox = TaskInbox(32)
    for one in given_tasks + given_tasks:
        inbox.add(one)
        if data.draw(st.booleans()) and (ready := inbox.lowest(everything)):
            inbox.start(ready)
    expected = {(one.task.kind, one.task.version, group.index) for one in given_tasks for group in one.task.groups}
    assert len(inbox.claims) + len(inbox.evaluation_claims) == len(expected)
    assert sorted(inbox.evaluation_claims) == sorted((version, index) for kind, version, index in expected if kind == EVALUATION)


def test_claims_last_from_the_fetch_to_the_end():
    inbox = TaskInbox(32)
    inbox.add(task(1, [4, 5]))
    inbox.add(task(2, [6]))
    assert inbox.claims == [4, 5, 6]
    first = inbox.lowest(everything)
    inbox.start(first)
    assert sorted(inbox.claims) == [4, 5, 6]
    assert inbox.running == [first.task]
    assert first.received == 1001
    inbox.finish(first)
    assert inbox.claims == [6]
    assert inbox.running == []


def test_a_task_that_is_not_ready_is_set_aside_and_does_not_stop_others():
    inbox = TaskInbox(32)
    inbox.add(task(9, [1]))
    assert inbox.lowest(lambda one: one.version <= 3) is None
    inbox.add(task(3, [2]))
    assert inbox.lowest(lambda one: one.version <= 3).task.version == 3


def test_a_dropped_task_is_claimed_no_more_and_may_come_again():
    inbox = TaskInbox(32)
    inbox.add(task(3, [2]))
    inbox.finish(inbox.lowest(everything))
    assert inbox.claims == []
    inbox.add(task(3, [2]))
    assert inbox.claims == [2]


def test_the_senders_task_is_not_changed():
    inbox = TaskInbox(32)
    inbox.add(task(0, [1]))
    second = task(0, [1, 2])
    inbox.add(second)
    assert [group.index for group in second.task.groups] == [1, 2]
    assert inbox.claims == [1, 2]


def test_a_task_of_many_groups_is_given_out_in_parts_and_claimed_as_a_whole():
    inbox = TaskInbox(2)
    inbox.add(task(3, [4, 5, 6, 7, 8]))
    assert inbox.claims == [4, 5, 6, 7, 8]
    parts = []
    while (part := inbox.lowest(everything)) is not None:
        inbox.start(part)
        parts.append([group.index for group in part.task.groups])
    assert parts == [[4, 5], [6, 7], [8]]
    assert sorted(inbox.claims) == [4, 5, 6, 7, 8]
