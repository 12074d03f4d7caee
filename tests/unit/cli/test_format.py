"""The line that follows a run."""

from datetime import UTC, datetime

import pytest

from gradbus.cli.format import duration, progress_line, run_line
from gradbus.resources.runs import RunSummary

PROGRESS = {
    "step": 3,
    "version": 2,
    "reward": 0.25,
    "accuracy": None,
    "loss": None,
    "pair_accuracy": None,
    "held_out_loss": None,
    "staleness": 1.0,
    "explained_variance": None,
    "teacher_kl": None,
    "tokens_per_second": 1234.5,
    "shares": {"train": 0.7, "generate": 0.2},
    "workers": 2,
}


def run(**changes):
    given = {"id": "run-1", "name": "sums", "kind": "rl", "state": "running", "desired": "running", "steps": 9, "created_at": None}
    return RunSummary.model_validate(given | {"progress": PROGRESS} | changes)


def line(**changes):
    return progress_line(run(**changes))


def test_a_running_run_shows_every_number_in_one_line():
    assert line() == ("step 3/9  v2  reward 0.250  held-out -  stale 1.0  1234 tok/s  gen 20% train 70%  2 workers")


def test_a_run_with_a_critic_shows_what_it_explains():
    assert "  stale 1.0  explained -0.12  1234 tok/s" in line(progress=PROGRESS | {"explained_variance": -0.123})


def test_a_run_with_a_teacher_shows_how_far_it_is_from_it():
    beside = line(progress=PROGRESS | {"teacher_kl": 0.5})
    assert "  v2  teacher KL 0.500  reward 0.250  stale" in beside
    assert "  v2  teacher KL 0.500  stale" in line(progress=PROGRESS | {"teacher_kl": 0.5, "reward": None})
    evaluated = line(progress=PROGRESS | {"teacher_kl": 0.5, "reward": None, "accuracy": 0.9})
    assert "  v2  teacher KL 0.500  held-out 0.900  stale" in evaluated


def test_another_state_stands_in_front():
    assert line(state="waiting_for_reward").startswith("waiting_for_reward  step 3/9")


def test_one_worker_is_one():
    assert line(progress=PROGRESS | {"workers": 1}).endswith("1 worker")


def test_a_run_that_has_not_begun_shows_dashes():
    empty = PROGRESS | {"version": -1, "reward": None, "staleness": None, "tokens_per_second": None, "shares": {}}
    assert line(progress=empty) == "step 3/9  v-  reward -  held-out -  stale -  - tok/s  2 workers"


def test_a_list_says_when_each_run_was_submitted():
    here = datetime(2026, 1, 2, 23, 4, tzinfo=UTC).astimezone()
    assert (
        run_line(run(created_at="2026-01-02T23:04:05Z")).split()
        == f"run-1 {here:%Y-%m-%d %H:%M} sums rl running step 3/9 reward 0.250 held-out -".split()
    )
    assert run_line(run(kind=None, state="unreadable")).split()[:4] == ["run-1", "-", "sums", "-"]


@pytest.mark.parametrize(
    ("kind", "pairs", "held_out", "scores"),
    [
        ("sft", None, None, "loss 0.693"),
        ("dpo", 0.75, 0.5, "loss 0.693  accuracy 0.750  held-out loss 0.500"),
        ("orpo", None, None, "loss -"),
    ],
)
def test_given_responses_have_a_loss_and_pairs_an_accuracy(kind, pairs, held_out, scores):
    progress = PROGRESS | {"loss": None if scores.endswith("-") else 0.6931, "pair_accuracy": pairs, "reward": None, "staleness": None}
    progress["held_out_loss"] = held_out
    progress["shares"] = {"generate": 0.0, "score": 0.0, "reference": 0.1, "train": 0.9}
    assert line(kind=kind, progress=progress) == f"step 3/9  v2  {scores}  1234 tok/s  reference 10% train 90%  2 workers"
    assert run_line(run(kind=kind, progress=progress)).split() == f"run-1 - sums {kind} running step 3/9 {scores}".split()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (3540, "59 min"), (12_000, "3 h 20 min"), (400_000, "4 days")]
)
def test_a_duration_has_one_or_two_units(seconds, text):
    assert duration(seconds) == text
