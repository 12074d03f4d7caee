"""The command as a user types it, against a real gateway."""

import asyncio
import json
import subprocess
import sys

import pytest

from gradbus.aio.tasks import background
from gradbus.bus import Buckets, EventLog
from gradbus.client import document
from gradbus.control.runs import WorkerPresence

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


def test_a_queue_is_named_and_an_unknown_one_refused(gradbus, spec_file):
    status, output, _ = gradbus("run", spec_file, "--queue", "default", "--json")
    assert (status, json.loads(output)["queue"]) == (0, "default")
    status, _, errors = gradbus("run", spec_file, "--queue", "team-a")
    assert status == 2
    assert "queue: there is no such queue on this server (GRADBUS_QUEUES)" in errors


def test_every_fault_is_printed_without_a_traceback(gradbus, spec_file):
    status, _, errors = gradbus("run", spec_file, "--set", "data.train=gone.jsonl", "--set", "rollout.sots=4", "--set", "model.path=.")
    assert status == 2
    assert "Traceback" not in errors
    assert "data.train: " in errors
    assert "model: cannot read" in errors
    assert "did you mean `slots`?" in errors


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (["show", "RUN"], "/v1/runs/RUN"),
        (["runs", "--limit", "1"], "/v1/runs?limit=1"),
        (["samples", "RUN"], "/v1/runs/RUN/samples"),
        (["lineage", "RUN"], "/v1/runs/RUN/lineage"),
        (["lineage", "RUN@0"], "/v1/runs/RUN/versions/0/lineage"),
    ],
)
def test_json_is_what_the_gateway_answers(gradbus, http, run_id, line, path):
    status, output, _ = gradbus(*(part.replace("RUN", run_id) for part in line), "--json")
    assert (status, json.loads(output)) == (0, http.get(path.replace("RUN", run_id)).json())


async def test_the_lineage_of_the_newest_version_is_that_of_its_number_however_the_run_is_named(gradbus, run_id, set_state):
    assert json.loads(gradbus("lineage", f"{run_id}@last", "--json")[1])["version"] == 0
    await set_state(run_id, "running", step=3, version=2)
    _, expected, _ = gradbus("lineage", f"{run_id}@3", "--json")
    for run in (run_id, run_id[:-2], "typed", "last"):
        assert gradbus("lineage", f"{run}@last", "--json") == (0, expected, "")
        assert gradbus("lineage", f"{run}@3", "--json") == (0, expected, "")
    assert gradbus("lineage", "nobody-has-this-name@last")[0] == 2


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
from gradbus.client import document
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
    await log.wait_until_stored()
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
    assert "the run is at step 0 of" in gradbus("samples", run_id, "--step", "99")[1]
    assert gradbus("events", run_id) == (0, "", "no events yet\n")
    status, _, errors = gradbus("export", run_id, str(tmp_path / "out"))
    assert (status, "no version yet" in errors) == (2, True)


def test_a_new_key_opens_the_gateway_at_once_and_a_revoked_one_no_more(gradbus, stack, tmp_path_factory):
    import httpx2

    keys = str(next(tmp_path_factory.getbasetemp().glob("gateway*/keys.json")))
    token = gradbus("keys", "create", "guest", "--file", keys)[1].strip()
    ask = lambda: httpx2.get(stack.url + "/v1/runs", headers={"Authorization": f"Bearer {token}"}, timeout=60).status_code  # noqa: E731
    assert ask() == 200
    assert "guest" in gradbus("keys", "list", "--file", keys)[1]
    gradbus("keys", "revoke", token.partition(".")[0], "--file", keys)
    assert ask() == 401


def test_a_dry_run_checks_everything_and_creates_nothing(gradbus, client, spec_file):
    before = document(client.runs_page(limit=1))["data"]
    status, output, _ = gradbus("run", spec_file, "--dry-run", "--set", "name=only-checked")
    assert (status, "only-checked is valid" in output) == (0, True)
    checked = json.loads(gradbus("run", spec_file, "--dry-run", "--json")[1])
    assert (checked["object"], checked["spec"]["data"]["train"][:7]) == ("spec_check", "sha256:")
    status, _, errors = gradbus("run", spec_file, "--dry-run", "--set", "rollout.sots=4")
    assert (status, "did you mean `slots`?" in errors) == (2, True)
    assert document(client.runs_page(limit=1))["data"] == before


def test_every_verb_about_a_run_prints_json(gradbus, run_id, spec_file):
    for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert json.loads(gradbus(verb, run_id, "--json")[1])["desired"] == state
    assert json.loads(gradbus("run", spec_file, "--json")[1])["name"] == "typed"
    assert json.loads(gradbus("open", run_id, "--json")[1])["link"].endswith(f"run={run_id}")
    status, output, errors = gradbus("resume", run_id, "--json")
    assert (status, output, json.loads(errors)["problem"]["status"]) == (2, "", 409)


async def test_following_prints_the_run_as_json_lines(gradbus, run_id, set_state):
    await set_state(run_id, "failed", step=4)
    status, output, _ = gradbus("show", run_id, "--follow", "--json")
    assert (status, [json.loads(line)["state"] for line in output.splitlines()]) == (1, ["failed"])


async def test_events_are_selected_by_type_level_and_tail(gradbus, bus, run_id, set_state):
    log = EventLog(bus, run_id)
    for step in range(4):
        log.emit("metrics", f"step {step}", {"step": step})
        log.emit("alarm", f"alarm {step}", level="error" if step % 2 else "warning")
    await log.wait_until_stored()
    await set_state(run_id, "succeeded")

    def shown(*options):
        return [event["message"] for event in map(json.loads, gradbus("events", run_id, "--json", *options)[1].splitlines())]

    assert shown("--tail", "2") == ["step 3", "alarm 3"]
    assert shown("--tail", "2", "--type", "metrics") == ["step 2", "step 3"]
    assert shown("--tail", "1", "--follow") == ["alarm 3"]
    assert shown("--level", "error") == ["alarm 1", "alarm 3"]
    assert shown("--level", "warning", "--limit", "3") == ["alarm 0", "alarm 1", "alarm 2"]
    assert shown("--follow", "--type", "alarm", "--type", "metrics", "--level", "warning") == [f"alarm {step}" for step in range(4)]
    assert "the history has the types alarm, metrics" in gradbus("events", run_id, "--type", "metric")[2]
    further = gradbus("events", run_id, "--level", "warning", "--limit", "3")[2].partition("`gradbus ")[2].partition("`")[0]
    assert "alarm 3" in gradbus(*further.split())[1]


def test_an_export_refuses_a_folder_that_is_not_empty(gradbus, run_id, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    assert "no version yet" in gradbus("export", run_id, str(folder))[2]
    (folder / "mine.txt").touch()
    status, _, errors = gradbus("export", run_id, str(folder))
    assert (status, "--overwrite" in errors) == (2, True)
    assert "no version yet" in gradbus("export", run_id, str(folder), "--overwrite")[2]


async def test_the_status_of_a_gateway_elsewhere_lists_its_workers(gradbus, bus):
    presence = WorkerPresence(worker="trainer-9", role="trainer", incarnation="a", trouble="[no] disk")
    starting = WorkerPresence(worker="rollout-9", role="rollout", incarnation="a", preparing="starts its engine")

    async def beat():
        while True:
            await (await bus.bucket(Buckets.WORKERS)).put("trainer-9", presence.to_bytes())
            await (await bus.bucket(Buckets.WORKERS)).put("rollout-9", starting.to_bytes())
            await asyncio.sleep(1.0)

    async with background(beat(), "presence"):
        status, output, _ = await asyncio.to_thread(gradbus, "status")
        shown = json.loads((await asyncio.to_thread(gradbus, "status", "--json"))[1])
    assert (status, "trainer-9" in output, "[no] disk" in output, "starts its engine" in output) == (0, True, True, True)
    assert "trainer-9" in [worker["worker"] for worker in shown["workers"]]


def test_keys_are_printed_as_json(gradbus, tmp_path):
    (tmp_path / "keys.json").write_text("[]")
    created = json.loads(gradbus("keys", "create", "guest", "--file", "keys.json", "--json")[1])
    assert created["token"].startswith(created["id"])
    (listed,) = json.loads(gradbus("keys", "list", "--file", "keys.json", "--json")[1])["data"]
    assert listed == {"object": "key", "id": created["id"], "name": "guest", "scopes": ["runs:read"]}
    assert json.loads(gradbus("keys", "revoke", created["id"], "--file", "keys.json", "--json")[1])["revoked"]


async def test_finished_runs_are_deleted_by_name_and_by_age(gradbus, run_id, set_state, client):
    status, _, errors = gradbus("delete", run_id)
    assert status == 2
    assert "cancel it" in errors
    status, output, _ = gradbus("delete", run_id, "--dry-run")
    assert (status, f"run {run_id} would not be deleted, because it has not ended" in output) == (0, True)
    assert f"cancel it first: gradbus cancel {run_id}" in output
    assert not json.loads(gradbus("delete", run_id, "--dry-run", "--json")[1])["deletable"]
    await set_state(run_id, "succeeded")  # in 1970, as other tests' runs
    status, output, _ = gradbus("delete", "--finished-before", "1d", "--dry-run")
    assert (status, f"run {run_id} would be deleted" in output.splitlines()) == (0, True)
    assert json.loads(gradbus("delete", run_id, "--dry-run", "--json")[1])["deletable"]
    assert client.run(run_id).id == run_id
    assert gradbus("delete", "--finished-before", "1960-01-01") == (0, "no run has ended before that\n", "")
    status, output, _ = gradbus("delete", run_id, "--finished-before", "2001-01-01T00:00+01:00")
    assert (status, output.splitlines().count(f"run {run_id} is deleted")) == (0, 1)
    assert run_id not in [run["id"] for run in map(document, client.runs())]


@pytest.mark.parametrize(
    ("arguments", "said"), [((), "name runs, or give --finished-before"), (("--finished-before", "soon"), "no age and no date")]
)
def test_a_deletion_that_names_nothing_says_how_to(gradbus, arguments, said):
    status, output, errors = gradbus("delete", *arguments)
    assert (status, output) == (2, "")
    assert said in errors
