"""The lines of `gradbus advise`, and the steps that it sees among other events."""

from datetime import UTC, datetime

import pytest

from gradbus.cli.specs import advise
from gradbus.cli.specs.advise import _lines, _newest_steps
from gradbus.plan.loop import Advice, Loop, Pace
from gradbus.resources.page import Page
from gradbus.resources.runs import EventResource


class History:
    """A client of a run with events of these types."""

    def __init__(self, types):
        now = datetime(2026, 1, 1, tzinfo=UTC)
        self.events = [
            EventResource(id=at, type=kind, level="info", message="", data={}, created_at=now) for at, kind in enumerate(types, start=1)
        ]
        self.read = 0

    def events_page(self, _run_id, after, limit):
        self.read += limit
        return Page[EventResource].of([(str(event.id), event) for event in self.events[after : after + limit + 1]], limit)


def steps_of(*types):
    return [event.id for event in _newest_steps(History(types), "run")]


@pytest.mark.parametrize("others", [0, 1, 120, 390])
def test_fifty_steps_are_seen_however_many_groups_are_dropped_between_them(others):
    step = ["metrics", *["dropped"] * others]
    assert steps_of(*step * 60) == [1 + len(step) * at for at in range(9, 60)]
    assert steps_of("state", *step * 7) == [2 + len(step) * at for at in range(7)]


@pytest.mark.parametrize("end", ["state", "learner"])
def test_steps_before_a_pause_or_a_restart_are_not_counted(end):
    assert steps_of("metrics", end, "metrics", "metrics", "evaluation") == [3, 4]
    assert steps_of("metrics", "metrics", end) == []


def test_a_history_without_steps_is_not_read_for_ever(monkeypatch):
    monkeypatch.setattr(advise, "_MOST_EVENTS", 2000)
    history = History(["metrics"] * 9 + ["dropped"] * 100_000)
    assert _newest_steps(history, "run") == []
    assert history.read < 50_000


def test_each_number_of_rollouts_has_its_gain_against_one_fewer():
    loop = Loop(8, 8, 1, False, ((10,),) * 8, 2)
    found = _lines(Pace(1.5, 0.93, 0.42, 0.04), loop, "token", [Advice(1, 3.0, -0.5), Advice(3, 1.08, 0.38), Advice(4, 1.06, 0.02)])
    assert list(found) == [
        "2 rollouts: 1.5 s a step; rollouts sample 93% of the time and load weights 4%, and the trainer waits 42%",
        "   sampling is the limit: more rollouts, faster ones, or more rollout.slots if they have the memory",
        "1 rollout: 3 s a step, -50%",
        "3 rollouts: 1.08 s a step, +38%",
        "4 rollouts: 1.06 s a step, +2% against 3",
    ]
