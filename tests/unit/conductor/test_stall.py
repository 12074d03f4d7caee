"""A run that stands still says what it waits for and who owes it."""

import pytest

from gradbus.control.runs import WorkerPresence
from gradbus_conductor.run import stall
from gradbus_conductor.run.stall import Blockers, StallDetector


def worker(name, role="rollout", trouble=""):
    return WorkerPresence(worker=name, role=role, incarnation="1", trouble=trouble)


TRAINER = worker("trainer-0", "trainer")


@pytest.mark.parametrize(
    ("debt", "words"),
    [
        (Blockers([TRAINER], [worker("rollout-0", trouble="the engine broke")], [4]), "rollout-0 is in trouble: the engine broke"),
        (Blockers([], [worker("rollout-0")], [4]), "no trainer serves the run"),
        (Blockers([TRAINER], [], [4, 5]), "2 groups wait for a rollout worker and none serves the run"),
        (Blockers([TRAINER], [worker("rollout-0")], [7, 4]), "2 groups, first 4, owed by rollout-0 or the scorer"),
        (Blockers([TRAINER], [worker("rollout-0")], []), "the next version, owed by trainer-0"),
        (Blockers([TRAINER], [worker("rollout-0")], [], 60), "the evaluation of version 60, owed by rollout-0 or the scorer"),
        (Blockers([TRAINER], [], [], 60), "the evaluation of version 60 waits for a rollout worker and none serves the run"),
    ],
)
def test_the_debtor_is_named(debt, words):
    assert str(debt).startswith(words)


async def test_movement_is_no_stall_and_standing_still_becomes_one(monkeypatch):
    watch, debt = StallDetector(), Blockers([TRAINER], [], [1])
    assert watch.reason(1, 4, debt) == ""
    monkeypatch.setattr(stall, "STALL_SECONDS", 0.0)
    assert watch.reason(1, 4, debt).startswith("something to move, for")
    monkeypatch.setattr(stall, "STALL_SECONDS", 10.0)
    assert watch.reason(2, 4, debt) == "", "a new version is movement"
    assert watch.reason(2, 3, debt) == "", "a group less is movement"
