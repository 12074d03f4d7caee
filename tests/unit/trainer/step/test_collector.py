"""Which entries make a step, for any way in which the log may come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import LogEntry, Verdict
from gradbus_trainer.step.collector import collector_for
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.step.groups import DecodedGroup, LoggedGroup

TRAIN, FILTERED, DROPPED = Verdict.VERDICT_TRAIN, Verdict.VERDICT_FILTERED, Verdict.VERDICT_DROPPED
SIZE = 3
verdicts = st.lists(st.sampled_from((TRAIN, FILTERED, DROPPED)), min_size=12, max_size=12)


def spec(mode, **schedule):
    body = {"name": "test", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
    return RunSpec.model_validate(body | {"schedule": {"mode": mode, "groups_per_step": SIZE, "steps": 10, **schedule}})


def item(index, verdict=TRAIN, digest=""):
    return LoggedGroup(LogEntry(index=index, verdict=verdict), digest or f"digest {index}", 10, DecodedGroup())


def new(mode, trained=(), **schedule):
    frontier = Frontier()
    frontier.add(0, [(index, "") for index in trained])
    return collector_for(spec(mode, **schedule), frontier), frontier


def drain(collector, frontier, items):
    """Every step that comes out while `items` go in."""
    steps = []
    for one in items:
        collector.add(one)
        while (taken := collector.take(len(steps))) is not None:
            frontier.add(len(steps), [(part.entry.index, part.digest) for part in taken])
            steps.append([part.entry.index for part in taken])
    return steps


@given(verdicts, st.permutations(range(12)), st.data())
def test_fixed_lag_gives_the_same_steps_for_any_arrival_and_any_verdicts(kinds, order, data):
    items = [item(index, kinds[index]) for index in order]
    repeated = [again for one in items for again in [one] * data.draw(st.integers(1, 2))]
    collector, frontier = new("fixed_lag")
    assert drain(collector, frontier, repeated + items) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_fixed_lag_waits_for_its_own_groups_and_names_them():
    collector, _ = new("fixed_lag")
    for index in (0, 2, 3, 4, 5):
        collector.add(item(index))
    assert collector.take(0) is None
    assert collector.lacking(0) == "1 groups of step 0, first [1]"
    collector.add(item(1))
    assert collector.lacking(0) == ""
    assert [one.entry.index for one in collector.take(0)] == [0, 1, 2]


@pytest.mark.parametrize("mode", ["fixed_lag", "free"])
def test_the_first_content_of_an_index_wins(mode):
    collector, _ = new(mode)
    for one in (item(0, digest="first"), item(0, digest="second"), item(1), item(2)):
        collector.add(one)
    assert collector.take(0)[0].digest == "first"


@given(verdicts, st.permutations(range(12)))
def test_free_cuts_the_log_at_each_third_trainable_entry(kinds, order):
    expected, part = [], []
    for index in order:
        part.append(index)
        if sum(kinds[member] == TRAIN for member in part) == SIZE:
            expected.append(sorted(part))
            part = []
    collector, frontier = new("free")
    assert drain(collector, frontier, [item(index, kinds[index]) for index in order]) == expected


@given(verdicts, st.permutations(range(12)), st.integers(1, 12))
def test_free_gives_the_same_steps_when_the_log_comes_at_once_or_in_parts(kinds, order, at):
    items = [item(index, kinds[index]) for index in order]
    collector, frontier = new("free")
    for one in items[:at]:
        collector.add(one)
    whole, other = new("free")
    assert drain(collector, frontier, items[at:] + items[:at]) == drain(whole, other, items)


@pytest.mark.parametrize("mode", ["fixed_lag", "free"])
def test_a_log_read_again_while_a_step_is_trained_trains_nothing_twice(mode):
    collector, frontier = new(mode)
    for index in range(3):
        collector.add(item(index))
    taken = collector.take(0)
    for index in range(6):  # before the frontier knows of step 0
        collector.add(item(index))
    frontier.add(0, [(one.entry.index, one.digest) for one in taken])
    assert [one.entry.index for one in collector.take(1)] == [3, 4, 5]
    assert collector.take(2) is None


@pytest.mark.parametrize("mode", ["fixed_lag", "free"])
def test_a_resumed_trainer_leaves_out_what_is_trained(mode):
    collector, _ = new(mode, trained=range(3))
    for index in range(6):
        collector.add(item(index))
    assert [one.entry.index for one in collector.take(1)] == [3, 4, 5]


def test_free_says_how_many_groups_it_lacks():
    collector, _ = new("free")
    collector.add(item(7))
    collector.add(item(8, FILTERED))
    assert collector.lacking(4) == "2 of 3 groups of step 4"


@given(verdicts, st.permutations(range(12)))
def test_dynamic_sampling_cuts_the_groups_in_order_of_index(kinds, order):
    expected, part = [], []
    for index in range(12):
        part.append(index)
        if sum(kinds[member] == TRAIN for member in part) == SIZE or len(part) == 2 * SIZE:
            expected.append(part)
            part = []
    collector, frontier = new("fixed_lag", dynamic_sampling=2)
    assert drain(collector, frontier, [item(index, kinds[index]) for index in order]) == expected


def test_dynamic_sampling_says_what_it_waits_for():
    collector, _ = new("fixed_lag", trained=(0, 1), dynamic_sampling=2)
    for one in (item(2), item(3, FILTERED), item(5)):
        collector.add(one)
    assert collector.take(1) is None
    assert collector.lacking(1) == "2 of 3 groups of step 1, first group 4"
    collector.add(item(4))
    assert collector.lacking(1) == ""
    assert [one.entry.index for one in collector.take(1)] == [2, 3, 4, 5]
