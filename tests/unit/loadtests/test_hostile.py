"""What is told of an hour of hostile users."""

import asyncio
from dataclasses import replace

import pytest

from gradbus_hostile.answer_times import UNANSWERED_SECONDS, answer_time
from gradbus_hostile.attack import Ended, Trained, attacked
from gradbus_hostile.attackers import Orders, Report, attack, parties, turn_seconds
from gradbus_hostile.clients import CLIENTS, HostileClient
from gradbus_hostile.hour import Hour, Phase
from gradbus_hostile.promises import broken, outcome
from gradbus_hostile.submissions import SUBMISSIONS
from gradbus_hostile.table.submission import ANY, FAILED, HARMLESS, Submission
from gradbus_hostile.target import KEPT_BYTES, Target, kept

SUBMISSION = Submission("evil", lambda material: material.spec(), FAILED)
TARGET = Target("127.0.0.1", 1, "key", "run")


def phase(*speeds, digest="d", answers=(0.01, 0.02)):
    return Phase([Trained("run", digest, speed, 0.0) for speed in speeds], list(answers))


def hour(**changes):
    kept_promises = {
        "before": phase(10.0),
        "neighbours": phase(8.0, 9.0),
        "beside": phase(8.5),
        "after": phase(9.5),
        "ends": [Ended(SUBMISSION, "failed", "its own fault", 3.0)],
        "turns": {client.name: 2 for client in CLIENTS},
        "memory_before": {"trainer-0": 10},
        "memory_after": {"trainer-0": 10 + KEPT_BYTES},
    }
    return Hour(**kept_promises | changes)


def test_an_hour_that_changed_little_keeps_every_promise():
    found = outcome(hour())
    assert broken(found, hour()) == []
    assert found.rows == [("evil", "failed", "3.0")]
    assert found.data["steps_per_second"]["beside hostile users"] == [8.5]
    assert found.data["ends"] == [{"submission": "evil", "end": "failed", "times": 1, "longest_s": 3.0}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"beside": phase(7.0)}, "beside hostile users / alone is 0.718; promised is at least 0.8"),
        ({"after": phase(9.5, digest="other")}, "digests of the well-behaved run is 2; promised is at most 1"),
        ({"ends": [Ended(SUBMISSION, "succeeded", "", 3.0)]}, "evil ended succeeded (1 times)"),
        ({"ends": [Ended(SUBMISSION, "queued", "a free trainer", 3.0)]}, "evil ended queued (1 times): a free trainer"),
        ({"ends": [Ended(SUBMISSION, "failed", "its own fault", 61.0)]}, "slowest end is 61 s; promised is at most 60"),
        ({"turns": {client.name: 1 for client in CLIENTS[1:]}}, f"client: {CLIENTS[0].name} is 0 turns; promised is at least 1"),
        ({"memory_after": {"trainer-0": 2 * KEPT_BYTES}}, "memory that trainer-0 gained is 200 MiB; promised is at most 100"),
        ({"beside": phase(8.5, answers=[0.01, 1.5])}, "answers of the API beside hostile users: p99 is 1.5 s; promised is at most 1"),
    ],
)
def test_a_promise_that_does_not_hold_is_named(changes, words):
    seen = hour(**changes)
    assert any(line.startswith(words) for line in broken(outcome(seen), seen)), broken(outcome(seen), seen)


@pytest.mark.parametrize(
    ("ends", "end", "cause", "allowed"),
    [(FAILED, "failed", "why", True), (FAILED, "failed", "", False), (HARMLESS, "succeeded", "", True), (ANY, "broke", "500", False)],
)
def test_an_end_is_allowed_if_the_table_has_it_and_a_failure_says_why(ends, end, cause, allowed):
    assert Ended(replace(SUBMISSION, ends=ends), end, cause, 1.0).is_allowed is allowed


def test_memory_is_kept_by_what_has_grown_by_more_than_the_bound():
    before = {"grown": 5, "gone": 5, "same": 5}
    assert kept(before, {"grown": 6 + KEPT_BYTES, "same": 5 + KEPT_BYTES}) == {"grown": KEPT_BYTES + 1}


async def test_a_hostile_client_that_ends_before_its_time_is_reported():
    async def ends(_target):
        raise ValueError("a fault of its own")

    with pytest.raises(RuntimeError, match="shy: ValueError"):
        async with attacked(TARGET, [HostileClient("shy", ends)]):
            await asyncio.sleep(0.01)


async def test_a_request_that_is_refused_counts_as_unanswered(free_port):
    assert await answer_time(replace(TARGET, port=free_port()), "/") == UNANSWERED_SECONDS


@pytest.mark.parametrize("minutes", [1.0, 20.0, 60.0])
def test_every_client_has_a_turn_within_the_minutes(minutes):
    orders = Orders("state", "http://127.0.0.1:1", "key", "another", {}, (), minutes, clients_at_once=8)
    taken = [client.name for party in parties(8) for client in party]
    assert sorted(taken) == sorted(client.name for client in CLIENTS)
    assert max(map(len, parties(8))) <= 8
    assert len(parties(8)) * turn_seconds(orders) <= 60 * minutes


def test_a_report_is_the_same_after_its_way_between_the_processes():
    report = Report([Ended(SUBMISSIONS[0], "failed", "its own \ud800 fault", 3.5)], {"followers": 2})
    assert Report.from_json(report.to_json().encode()) == report


@pytest.mark.slow
async def test_attackers_that_fail_are_reported(tmp_path):
    with pytest.raises(RuntimeError, match="hostile users failed"):
        await attack(Orders(str(tmp_path), "http://127.0.0.1:1", "key", "another", {"name": "good"}, (), 0.0, 8))
