"""The line that follows a run."""

from gradbus.cli.format import progress_line

PROGRESS = {
    "step": 3,
    "version": 2,
    "reward": 0.25,
    "accuracy": None,
    "staleness": 1.0,
    "tokens_per_second": 1234.5,
    "shares": {"train": 0.7, "generate": 0.2},
    "workers": 2,
}


def line(**changes):
    return progress_line({"state": "running", "steps": 9, "waiting_for": "", "progress": PROGRESS} | changes)


def test_a_running_run_shows_every_number_in_one_line():
    assert line() == ("step 3/9  v2  reward 0.250  held-out -  stale 1.0  1234 tok/s  gen 20% train 70%  2 workers")


def test_another_state_stands_in_front():
    assert line(state="waiting_for_reward").startswith("waiting_for_reward  step 3/9")


def test_one_worker_is_one():
    assert line(progress=PROGRESS | {"workers": 1}).endswith("1 worker")


def test_a_run_that_has_not_begun_shows_dashes():
    empty = PROGRESS | {"version": -1, "reward": None, "staleness": None, "tokens_per_second": None, "shares": {}}
    assert line(progress=empty) == "step 3/9  v-  reward -  held-out -  stale -  - tok/s  2 workers"
