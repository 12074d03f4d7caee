"""A run without progress says what it waits for, and at which worker."""

import pytest

from gradbus.control.runs import WorkerPresence
from gradbus_conductor.run import stall
from gradbus_conductor.run.stall import Blockers, StallDetector


def worker(name, role="rollout", **fields):
    return WorkerPresence(worker=name, role=role, incarnation="1", **fields)


TRAINER = worker("trainer-0", "trainer")
WAITS = worker("trainer-1", "trainer", preparing="waits for its device")
STARTS = worker("rollout-1", preparing="starts its sglang engine")


@pytest.mark.parametrize(
    ("blockers", "words"),
    [
        (Blockers([TRAINER], [worker("rollout-0", trouble="the engine broke")], [4]), "rollout-0, which is in trouble: the engine broke"),
        (Blockers([], [worker("rollout-0")], [4]), "a trainer: none serves the run; start one"),
        (Blockers([TRAINER], [STARTS], [4, 5]), "rollout-1, which starts its sglang engine"),
        (Blockers([WAITS], [worker("rollout-0")], [4]), "trainer-1, which waits for its device"),
        (Blockers([WAITS], [STARTS], [4]), "trainer-1, which waits for its device, rollout-1, which starts its sglang engine"),
        (Blockers([TRAINER], [worker("rollout-0"), STARTS], [4]), "1 groups outstanding (lowest 4) at rollout-0, rollout-1 or the scorer"),
        (Blockers([TRAINER], [], [4, 5]), "a rollout worker for 2 groups: none serves the run; start one"),
        (Blockers([TRAINER], [worker("rollout-0")], [7, 4]), "2 groups outstanding (lowest 4) at rollout-0 or the scorer"),
        (Blockers([TRAINER], [worker("rollout-0")], []), "the next version from trainer-0"),
        (Blockers([TRAINER], [worker("rollout-0")], [], 60), "the evaluation of version 60 at rollout-0 or the scorer"),
        (Blockers([TRAINER], [], [], 60), "a rollout worker for the evaluation of version 60: none serves the run; start one"),
    ],
)
def test_the_blocker_is_named(blockers, words):
    assert str(blockers).startswith(words)


async def test_progress_is_no_stall_and_its_absence_becomes_one(monkeypatch):
    detector, blockers = StallDetector(), Blockers([TRAINER], [], [1])
    assert detector.reason(1, 4, blockers) == ""
    monkeypatch.setattr(stall, "STALL_SECONDS", 0.0)
    assert detector.reason(1, 4, blockers) == f"{blockers}; no progress for 0 s"
    monkeypatch.setattr(stall, "STALL_SECONDS", 10.0)
    assert detector.reason(2, 4, blockers) == "", "a new version is progress"
    assert detector.reason(2, 3, blockers) == "", "a group less is progress"


async def test_an_engine_that_starts_is_told_at_once(monkeypatch):
    detector, blockers = StallDetector(), Blockers([TRAINER], [STARTS], range(48))
    assert detector.reason(0, 48, blockers) == "rollout-1, which starts its sglang engine"
    monkeypatch.setattr(stall, "STALL_SECONDS", 0.0)
    assert detector.reason(0, 48, blockers) == "rollout-1, which starts its sglang engine; no progress for 0 s"
    assert detector.reason(0, 48, Blockers([TRAINER], [worker("rollout-0"), STARTS], range(47))) != ""
    monkeypatch.setattr(stall, "STALL_SECONDS", 10.0)
    assert detector.reason(0, 47, Blockers([TRAINER], [worker("rollout-0"), STARTS], range(47))) == "", "one samples already"


async def test_an_environment_that_answers_no_worker_is_told_after_a_while(monkeypatch):
    detector = StallDetector()
    waits = worker("rollout-0", trouble="no agent has claimed an episode", awaits_environment=True, claims=[4])
    assert detector.environment_failure([waits]) == "", "it may come back"
    monkeypatch.setattr(stall, "STALL_SECONDS", 0.0)
    assert detector.environment_failure([waits, waits]) == "no agent has claimed an episode"
    assert detector.environment_failure([worker("rollout-1"), waits]) == "no agent has claimed an episode", "one is idle"
    assert detector.environment_failure([waits.model_copy(update={"claims": []})]) != "", "it asks for the description, before any claim"
    assert detector.environment_failure([]) == "", "nobody asks"
    monkeypatch.setattr(stall, "STALL_SECONDS", 10.0)
    assert detector.environment_failure([waits, worker("rollout-1", claims=[5])]) == "", "one has an answer"
    assert detector.environment_failure([waits]) == "", "since a moment ago"
