"""A scorer that hangs, or fails for good: what it costs the groups beside it, and when it ends the run."""

import asyncio

import pytest

from gradbus.v1.group_pb2 import Verdict
from gradbus.v1.reward_pb2 import RewardStatus, SampleReward
from gradbus_conductor.groups import judging, scoring
from gradbus_conductor.groups.scoring import Scoring
from gradbus_conductor.groups.traces import GroupTraces

HOUR = {"service": "grpc://127.0.0.1:1", "timeout_seconds": 3600.0}
GRADER = {"grader": {"type": "python", "source": "def grade(s, i): return 1.0"}, "timeout_seconds": 3600.0}


@pytest.fixture
async def start(clients, record, run_id):
    """Submits groups, in calls of up to `size`; the scoring and the entries so far."""
    opened = []

    def run(groups, size=128, **sections):
        found = {}

        def done(entry):
            assert entry.index not in found, "a group is judged once, however many calls ask about it"
            found[entry.index] = entry

        opened.append(Scoring(clients, run_id, record(**sections).spec, GroupTraces(run_id, 0.0), done))
        opened[-1]._batch_size = size
        opened[-1].submit((group, "{}") for group in groups)
        return opened[-1], found

    yield run
    for one in opened:
        await one.close()


@pytest.fixture
def started(monkeypatch):
    """The scorer is not starting: what does not answer hangs."""
    monkeypatch.setattr(scoring, "_START_SECONDS", 0.0)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what it looks at does not signal
            await asyncio.sleep(0.01)


async def test_calls_that_hang_for_an_hour_now_and_then_hold_nothing_up(start, scorer, group):
    scorer.hangs = lambda _ids, number: number % 5 == 0
    running, found = start([group(index) for index in range(40)], size=4, reward=HOUR)
    await until(lambda: len(found) == 40)
    assert {entry.verdict for entry in found.values()} == {Verdict.VERDICT_TRAIN}
    await until(lambda: scorer.hanging == 0)
    assert running.state.failing == {}


@pytest.mark.usefixtures("started")
async def test_a_sample_on_which_the_scorer_hangs_delays_its_own_group_alone(start, scorer, group):
    scorer.hangs = lambda ids, _number: "5.1" in ids
    _, found = start([group(index) for index in range(16)], reward=HOUR)
    await until(lambda: len(found) == 15)
    assert 5 not in found


async def test_a_scorer_that_has_answered_the_run_before_is_not_waited_for_as_one_that_starts(start, scorer, group, monkeypatch):
    monkeypatch.setattr(scoring, "_START_SECONDS", 3600.0)
    before, found = start([group(0)], reward=HOUR)
    await until(lambda: len(found) == 1)
    scorer.hangs = lambda ids, _number: "5.1" in ids
    running, found = start([group(index) for index in range(4, 8)], reward=HOUR)  # as an evaluation's
    running.state.first_answers = before.state.first_answers
    await until(lambda: len(found) == 3)
    assert 5 not in found


async def test_groups_that_failed_before_are_asked_about_apart_from_the_others(start, scorer, group, monkeypatch):
    seen = []
    scorer.hangs = lambda ids, _number: seen.append(sorted({name[0] for name in ids}))
    scorer.answer = lambda sample, _: SampleReward(sample_id=sample.sample_id, status=RewardStatus.REWARD_STATUS_ERROR, reason="busy")
    monkeypatch.setattr(scoring, "_BACKOFF_SECONDS", (0.0,))
    running, _ = start([group(1), group(2)], reward=HOUR)
    await until(lambda: len(seen) >= 4)
    running.submit([(group(3), "{}")])
    await until(lambda: any("3" in groups for groups in seen))
    assert next(groups for groups in seen if "3" in groups) == ["3"]


@pytest.mark.usefixtures("started")
async def test_a_scorer_that_hangs_as_a_whole_is_not_flooded(start, scorer, group, monkeypatch):
    monkeypatch.setattr(scoring, "_FIRST_LATE_SECONDS", 0.01)
    scorer.hangs = lambda _ids, _number: True
    start([group(index) for index in range(64)], reward=HOUR)
    await until(lambda: scorer.hanging == 1 + scoring._MAX_REPEATS)
    await asyncio.sleep(1.0)
    assert scorer.calls == 1 + scoring._MAX_REPEATS


async def test_a_scorer_that_is_starting_is_asked_once_and_a_call_that_hangs_again_when_another_was_answered(
    start, scorer, group, monkeypatch
):
    monkeypatch.setattr(scoring, "_FIRST_LATE_SECONDS", 0.01)
    monkeypatch.setattr(scoring, "_START_SECONDS", 3600.0)
    scorer.hangs = lambda _ids, number: number == 1
    running, found = start([group(0)], reward=HOUR)
    await until(lambda: scorer.hanging == 1)
    await asyncio.sleep(0.5)
    assert scorer.calls == 1
    running.submit([(group(1), "{}")])
    await until(lambda: found.keys() == {0, 1})


@pytest.mark.usefixtures("started")
async def test_calls_of_a_grader_are_not_repeated_for_it_has_processes_of_its_own(start, scorer, group, monkeypatch):
    monkeypatch.setattr(scoring, "_FIRST_LATE_SECONDS", 0.01)
    scorer.hangs = lambda _ids, _number: True
    start([group(0)], reward=GRADER)
    await until(lambda: scorer.hanging == 1)
    await asyncio.sleep(0.5)
    assert scorer.calls == 1


async def test_what_nobody_wants_any_more_is_not_waited_for(start, scorer, group):
    scorer.hangs = lambda _ids, _number: True
    running, _ = start([group(0), group(1)], reward=HOUR)
    await until(lambda: scorer.hanging == 1)
    running.forget([0])
    await asyncio.sleep(0.2)
    assert scorer.hanging == 1, "the other group is wanted"
    running.forget([1])
    await until(lambda: scorer.hanging == 0)


@pytest.mark.usefixtures("started")
async def test_the_reference_is_asked_once_about_a_group_of_two_calls(start, scorer, reference, group, monkeypatch):
    monkeypatch.setattr(scoring, "_FIRST_LATE_SECONDS", 0.05)
    scorer.release = asyncio.Event()
    scorer.hangs = lambda _ids, number: number > 1 and scorer.release.set()
    _, found = start([group(0)], reward=HOUR, algorithm={"kl": 0.1})
    await until(lambda: found)
    assert scorer.calls > 1, "the second call lets the first one answer"
    await asyncio.sleep(0.2)
    assert [len(values) for values in found[0].reference_logprobs] == [12, 12]
    assert sorted(reference.asked) == ["0.0", "0.1"]


def failure(reason, *, permanent):
    return lambda sample, _: SampleReward(
        sample_id=sample.sample_id, status=RewardStatus.REWARD_STATUS_ERROR, reason=reason, permanent=permanent
    )


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(scoring, "_BACKOFF_SECONDS", (0.0,))


@pytest.mark.usefixtures("impatient")
async def test_a_sample_that_fails_for_good_ends_the_run_with_the_cause(start, scorer, group):
    scorer.answer = failure("its reward is nan", permanent=True)
    running, _ = start([group(3)], reward=HOUR)
    await until(lambda: running.state.fault)
    assert running.state.fault.startswith("group 3 could not be scored in 6 attempts: the scorer on sample 3.")
    assert "its reward is nan" in running.state.fault
    assert scorer.asked["3.0"] >= judging._MAX_PERMANENT_FAILURES


@pytest.mark.usefixtures("impatient")
async def test_a_scorer_that_is_away_or_says_that_it_failed_is_waited_for(start, scorer, group):
    scorer.answer = failure("the disk is full", permanent=False)
    running, _ = start([group(3)], reward=HOUR)
    await until(lambda: scorer.asked.get("3.0", 0) > 3 * judging._MAX_PERMANENT_FAILURES)
    scorer.down = 1000
    await asyncio.sleep(0.5)
    assert running.state.fault == ""


@pytest.mark.usefixtures("impatient")
async def test_a_fault_of_the_conductor_itself_ends_the_run_too(start, group, monkeypatch):
    def broken(_judge, _pending):
        raise OverflowError("math range error")

    monkeypatch.setattr(judging.GroupJudge, "_entry", broken)
    running, _ = start([group(0)], reward=HOUR)
    await until(lambda: running.state.fault)
    assert "OverflowError: math range error" in running.state.fault


@pytest.mark.usefixtures("impatient")
async def test_a_reference_that_cannot_compute_ends_the_run_with_the_cause(start, reference, group):
    reference.refusal = "the model has no such token"
    running, _ = start([group(3)], reward=HOUR, algorithm={"kl": 0.1})
    await until(lambda: running.state.fault)
    assert "the model has no such token" in running.state.fault
    assert len(reference.asked) >= 2 * judging._MAX_PERMANENT_FAILURES


def test_an_attempt_counts_once_however_many_of_its_calls_fail(group):
    state, pending = judging.ScoringState(), judging.PendingGroup(group(3), "{}")
    state.wanted.add(3)
    for attempt in range(judging._MAX_PERMANENT_FAILURES):
        assert state.fault == ""
        pending.attempts = attempt
        for _ in range(3):
            state.fail_permanently(pending, "its reward is nan", "3.0")
    assert "in 6 attempts: its reward is nan" in state.fault


def test_a_call_is_late_by_what_is_usual_for_its_size():
    assert scoring._late_after([], 100) == scoring._FIRST_LATE_SECONDS
    assert scoring._late_after([(8, 0.001)], 8) == scoring._MIN_LATE_SECONDS
    assert scoring._late_after([(8, 0.5), (8, 0.5), (8, 3600.0)], 8) == 2.0, "one call that hung makes nothing usual"
    assert scoring._late_after([(8, 0.5)], 4) == 2.0
    assert scoring._late_after([(8, 0.5)], 80) == 20.0
