"""From which group on a scorer judges is decided once, whoever asks again and whoever continues the run."""

from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradbus.bus import Buckets, EventLog
from gradbus.control.scorers import ScorerChanges
from gradbus.errors import CorruptRecordError, FencedError
from gradbus.spec import RewardChange
from gradbus_conductor.scorer_schedule import ScorerSchedule

RUNS = count()


def change(name, from_group=0):
    return RewardChange(service=f"http://scorer/{name}", from_group=from_group)


def wanted(*changes):
    return ScorerChanges(changes=changes).to_bytes()


def told(changes):
    return [(one.service.rpartition("/")[2], one.from_group) for one in changes]


@pytest.fixture
async def conductors(clients, record, run_id):
    """Makes the part of a conductor that continues the run."""
    bucket = await clients.bus.bucket(Buckets.RUNS)
    spec_with = record(reward={"service": "http://scorer/first", "changes": [{"from_group": 12, "service": "http://scorer/told"}]})

    def make(run=run_id, **schedule):
        spec = spec_with.spec.model_copy(update={"schedule": spec_with.spec.schedule.model_copy(update=schedule)})
        one = spec_with.model_copy(update={"run_id": run, "spec": spec})
        return ScorerSchedule(bucket, one, EventLog(clients.bus, run))

    yield make
    await bucket.purge(f"{run_id}.scorers")


async def test_a_scorer_begins_with_the_group_that_is_next_or_with_a_later_one_that_is_asked_for(conductors, clients, run_id):
    one = conductors()
    assert await one.recover() == ()
    assert told(await one.decide(wanted(change("a"), change("b", 40)), 8, 3)) == [("a", 8), ("b", 40)]
    assert await one.decide(wanted(change("a"), change("b", 40)), 16, 3) == (), "decided before"
    events = EventLog(clients.bus, run_id)
    await one._events.wait_until_stored()
    assert [event.message for event in await events.read()] == [
        "from group 8 on, http://scorer/a judges",
        "from group 40 on, http://scorer/b judges",
    ]


async def test_no_group_begins_two_scorers_those_of_the_spec_among_them(conductors):
    one = conductors()
    await one.recover()
    found = await one.decide(wanted(change("a"), change("b"), change("c", 12)), 11, 3)
    assert told(found) == [("a", 11), ("b", 13), ("c", 14)]


async def test_the_next_conductor_has_the_same_decisions_and_only_adds_to_them(conductors):
    one = conductors()
    await one.recover()
    await one.decide(wanted(change("a")), 8, 3)
    following = conductors()
    assert told(await following.recover()) == [("a", 8)]
    assert told(await following.decide(wanted(change("a"), change("b")), 9, 3)) == [("b", 9)]


async def test_a_conductor_that_froze_decides_nothing_any_more(conductors):
    frozen, following = conductors(), conductors()
    await frozen.recover()
    await following.recover()
    with pytest.raises(FencedError):
        await frozen.decide(wanted(change("a")), 8, 3)
    assert await conductors().recover() == ()


async def test_where_filtered_groups_take_no_place_in_a_step_the_version_is_decided_too(conductors):
    one = conductors(dynamic_sampling=4)
    await one.recover()
    [found] = await one.decide(wanted(change("a")), 80, 5)
    assert (found.from_group, found.from_version) == (80, 5)


async def test_changes_of_a_newer_release_are_left_alone_and_the_run_goes_on(conductors):
    one = conductors()
    await one.recover()
    newer = wanted(change("a")).replace(b'"from_group"', b'"mood": "calm", "from_group"')
    assert await one.decide(newer, 8, 3) == ()
    assert told(await one.decide(wanted(change("a")), 8, 3)) == [("a", 8)], "once it can be read"


async def test_decisions_that_cannot_be_read_say_which_key_it_is(conductors, clients, run_id):
    await (await clients.bus.bucket(Buckets.RUNS)).put(f"{run_id}.scorers", b"nothing")
    with pytest.raises(CorruptRecordError, match=f"{run_id}.scorers in the bucket"):
        await conductors().recover()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.booleans()), min_size=1, max_size=8))
async def test_a_decided_group_never_changes_and_lies_behind_all_that_were_dispatched(conductors, run_id, acts):
    run = f"{run_id}-{next(RUNS)}"
    asked, decided, dispatched = [], {}, 0
    one = conductors(run)
    known = {change.from_group for change in await one.recover()}
    for more, least, dies in acts:
        asked += [change(str(len(asked) + n), least) for n in range(more)]
        dispatched += least % 5
        if dies:
            one = conductors(run)
            assert dict(told(await one.recover())).items() >= decided.items()
        for name, group in told(await one.decide(wanted(*asked), dispatched, 3)):
            assert name not in decided
            assert group >= max(dispatched, least if int(name) >= len(asked) - more else 0)
            assert group not in known | {12}
            decided[name] = group
            known.add(group)
    assert sorted(decided, key=int) == [str(n) for n in range(len(asked))]
