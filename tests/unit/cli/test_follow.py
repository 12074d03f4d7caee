"""What following a run shows, on a terminal and in a pipe."""

import itertools
import re

import pytest

from gradbus.cli import follow
from gradbus.resources.runs import RunSummary

PROGRESS = {
    "step": 3,
    "version": 3,
    "reward": 0.5,
    "accuracy": None,
    "loss": None,
    "pair_accuracy": None,
    "held_out_loss": None,
    "staleness": 1.0,
    "explained_variance": None,
    "teacher_kl": None,
    "tokens_per_second": 10.0,
    "shares": {"generate": 1.0, "wait": 0.5, "train": 0.5},
    "workers": 1,
}
RUN = {"id": "run-1", "name": "sums", "kind": "rl", "state": "running", "desired": "running", "steps": 9} | {
    "progress": PROGRESS,
    "created_at": None,
}
WAITS = "the scorer on sample 0.0: the scorer gave no result for this sample; answer every sample_id of the request"


class Runs:
    """A gateway whose run has the given state at each look."""

    def __init__(self, *looks):
        self._looks = iter(looks)

    def run(self, run_id):
        return RunSummary.model_validate(RUN | next(self._looks))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A second a look."""
    seconds = itertools.count()
    monkeypatch.setattr(follow.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(follow.time, "sleep", lambda _: None)


def test_in_a_pipe_a_line_is_not_said_again_until_it_changes(capsys):
    waiting = {"state": "queued", "waiting_for": "a free trainer"}
    assert follow.follow_run(Runs(*[waiting] * 20, {}, {"state": "succeeded"}), "run-1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["queued", "step", "succeeded", "run", "export"]
    assert lines[0].endswith("waits for a free trainer")


def test_the_time_left_follows_from_the_steps_that_were_watched(capsys):
    looks = [{"steps": 1000, "progress": PROGRESS | {"step": step}} for step in (3, 3, 4, 13)]
    paused = {"state": "paused", "steps": 1000}
    follow.follow_run(Runs(*looks, paused, *looks[:3], {"state": "succeeded"}), "run-1")
    lines = capsys.readouterr().out.splitlines()
    (told,) = [line for line in lines if " left" in line]
    assert re.match(r"step 13/1000 \(\d+ min left\)  v3 ", told), "by ten steps; two looks after a pause say nothing"


def test_a_problem_of_an_active_run_is_printed_once(capsys):
    no_signal = [
        {"reason": f"none of the last {32 * step} groups could be trained", "progress": PROGRESS | {"step": step}} for step in range(1, 9)
    ]
    assert follow.follow_run(Runs({}, *no_signal, {"state": "succeeded", "reason": "nothing was learned"}), "run-1") == 0
    shown = capsys.readouterr().out
    assert (shown.count("none of the last"), shown.count("nothing was learned"), shown.count("step 7/9")) == (1, 1, 1)


def test_another_problem_is_printed_beside_the_first(capsys):
    alarms = ["step 10: trainer and rollout differ", "step 39: the mean reward fell from 0.5 to 0.1"]
    looks = [{"reason": alarm, "progress": PROGRESS | {"step": step}} for alarm in alarms for step in range(4)]
    follow.follow_run(Runs(*looks, {"state": "succeeded"}), "run-1")
    shown = capsys.readouterr().out
    assert [shown.count(alarm) for alarm in alarms] == [1, 1]


def test_a_reason_does_not_control_the_terminal(capsys):
    ends = {"state": "failed", "reason": "the template \x1b]0;title\x07 fails\x9b2J\nhere"}
    follow.follow_run(Runs({"reason": "\x1b[2Jbad"}, ends), "run-1")
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    assert shown.splitlines()[-1] == "run run-1 failed: the template  ]0;title  fails 2J here"


def test_suggested_commands_reach_the_same_stack(capsys):
    assert follow.follow_run(Runs({"state": "succeeded"}), "run-1", " --state there") == 0
    assert "gradbus export run-1 DIR --state there\n" in capsys.readouterr().out
    assert follow.follow_run(Runs({"state": "succeeded"}), "run-1", None) == 0
    assert "gradbus" not in capsys.readouterr().out


@pytest.mark.parametrize("option", ["", " --state there", None])
def test_ctrl_c_leaves_the_run_alone_or_is_the_callers(capsys, monkeypatch, option):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(follow.time, "sleep", stop)
    if option is None:
        with pytest.raises(KeyboardInterrupt):
            follow.follow_run(Runs({}), "run-1", option)
    else:
        assert follow.follow_run(Runs({}), "run-1", option) == 130
        assert f"`gradbus show run-1 --follow{option}`" in capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_the_figures_are_cut_and_what_is_awaited_is_whole(capsys, monkeypatch, width):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(follow.sys.stdout, "isatty", lambda: True, raising=False)
    ends = {"state": "failed", "reason": "no more", "waiting_for": WAITS}
    assert follow.follow_run(Runs({}, ends), "run-1") == 1
    shown = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", capsys.readouterr().out).split())
    assert f"waits for {WAITS}" in shown
    assert ("…" in shown) == (width == 80)
    assert "run run-1 failed: no more" in shown
