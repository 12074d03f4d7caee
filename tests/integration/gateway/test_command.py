"""The command as a user types it, against a real gateway."""

import json
import os
import subprocess
import sys

import pytest

from gradbus.bus import EventLog

SPEC = """
name = "typed"
[model]
path = "model"
[data]
train = "train.jsonl"
eval = "eval.jsonl"
[rollout]
max_new_tokens = 8
[reward.grader]
type = "python"
file = "grade.py"
[schedule]
steps = 4
groups_per_step = 2
"""


@pytest.fixture
def gradbus(stack, tmp_path):
    """Runs the command; returns (exit status, output, errors)."""
    environment = {**os.environ, "GRADBUS_URL": stack.url, "GRADBUS_KEY": stack.key}

    def command(*arguments):
        line = [sys.executable, "-m", "gradbus.cli", *arguments]
        done = subprocess.run(line, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return command


@pytest.fixture
def spec_file(spec, tmp_path):
    """A TOML spec beside the files of the fixture `spec`."""
    (tmp_path / "grade.py").write_text("def grade(sample, item):\n    return 1.0\n")
    (tmp_path / "run.toml").write_text(SPEC)
    return "run.toml"


@pytest.fixture
def run_id(gradbus, spec_file):
    status, output, errors = gradbus("run", spec_file)
    assert status == 0, errors
    return output.split()[1]


def test_a_run_is_submitted_with_its_files_and_changes(gradbus, spec_file):
    status, output, _ = gradbus("run", spec_file, "--set", "schedule.steps=9", "--set", "name=changed")
    assert status == 0
    run = json.loads(gradbus("show", output.split()[1], "--json")[1])
    assert (run["name"], run["steps"]) == ("changed", 9)
    assert run["spec"]["reward"]["grader"]["source"].startswith("def grade")


def test_every_fault_is_printed_without_a_traceback(gradbus, spec_file):
    status, _, errors = gradbus("run", spec_file, "--set", "data.train=gone.jsonl", "--set", "rollout.sots=4", "--set", "model.path=.")
    assert status == 2
    assert "Traceback" not in errors
    assert "data.train: " in errors
    assert "model: cannot read" in errors
    assert "did you mean `slots`?" in errors


@pytest.mark.parametrize(("state", "status"), [("succeeded", 0), ("failed", 1), ("cancelled", 3)])
async def test_following_ends_with_the_run_s_own_status(gradbus, stack, run_id, set_state, tmp_path, state, status):
    await set_state(run_id, state, step=4, version=4, reward=0.5, accuracy=0.75, shares={"train": 0.5}, workers=2)
    done = follow(stack, run_id)
    assert done.returncode == status, done.stderr
    assert f"run {run_id} {state}" in done.stdout
    assert "step 4/4  v4  reward 0.500  held-out 0.750" in done.stdout
    assert "train 50%" in done.stdout


def follow(stack, run_id):
    source = f"""
import sys
from gradbus.cli.follow import follow_run
from gradbus.client import Client
sys.exit(follow_run(Client({stack.url!r}, {stack.key!r}), {run_id!r}))
"""
    return subprocess.run([sys.executable, "-c", source], check=False, capture_output=True, text=True, timeout=60)


def test_a_run_goes_by_id_prefix_name_and_last(gradbus, run_id):
    for name in (run_id, run_id[:-1], "typed", "last"):
        assert gradbus("show", name)[1].startswith(run_id)
    status, _, errors = gradbus("show", "nothing-like-it")
    assert (status, "gradbus runs" in errors) == (2, True)
    assert run_id in gradbus("runs")[1]


def test_actions_report_the_new_state(gradbus, run_id):
    assert "requested: paused" in gradbus("pause", run_id)[1]
    assert "requested: running" in gradbus("resume", run_id)[1]
    assert "requested: cancelled" in gradbus("cancel", run_id)[1]
    status, _, errors = gradbus("resume", run_id)
    assert (status, "409" in errors) == (2, True)


async def test_a_history_shows_its_figures_and_says_when_there_is_more(gradbus, bus, run_id):
    log = EventLog(bus, run_id)
    for step in range(3):
        log.emit("metrics", f"step {step}", {"step": step, "reward": 0.25, "loss": -0.5})
    await log.flush()
    _, output, errors = gradbus("events", run_id, "--limit", "2")
    assert "step 1  reward 0.250  loss -0.500" in output
    further = errors.partition("`gradbus ")[2].partition("`")[0]
    assert "step 2" in gradbus(*further.split())[1]


@pytest.mark.parametrize(("state", "status"), [("succeeded", 0), ("failed", 1)])
async def test_a_run_that_goes_on_can_be_followed_again(gradbus, run_id, set_state, state, status):
    await set_state(run_id, state, step=4, version=4, workers=1)
    done, output, _ = gradbus("show", run_id, "--follow")
    assert (done, f"run {run_id} {state}" in output) == (status, True)


def test_what_is_not_there_yet_is_said(gradbus, run_id, tmp_path):
    assert gradbus("samples", run_id)[1] == "no samples yet\n"
    assert gradbus("events", run_id) == (0, "", "no events yet\n")
    status, _, errors = gradbus("export", run_id, str(tmp_path / "out"))
    assert (status, "no version yet" in errors) == (2, True)


def test_a_new_key_opens_the_gateway_at_once_and_a_revoked_one_no_more(gradbus, stack, tmp_path_factory):
    import httpx2

    keys = str(next(tmp_path_factory.getbasetemp().glob("gateway*/keys.json")))
    token = gradbus("keys", "create", "guest", "--file", keys)[1].strip()
    ask = lambda: httpx2.get(stack.url + "/v1/runs", headers={"Authorization": f"Bearer {token}"}).status_code  # noqa: E731
    assert ask() == 200
    assert "guest" in gradbus("keys", "list", "--file", keys)[1]
    gradbus("keys", "revoke", token.partition(".")[0], "--file", keys)
    assert ask() == 401
