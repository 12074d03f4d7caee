"""Each tracker with its own package: fed by processes that die, it has every point once."""

import csv
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gradbus.errors import TrackerError
from gradbus.trackers import Point, TrackedRun, open_sink
from gradbus.trackers.points import EVENT

FEEDER = Path(__file__).with_name("feeder.py")
TITLE = "sums-run-0123456789ab-000001"
FIRST = 1 << 40
"""Events of all runs share one count."""


def happened():
    """40 steps, of which a restart repeats some, and four evaluations."""
    for number in range(40):
        step = number if number < 25 else number - 5
        yield "metrics", {"step": step, "reward": step / 8, "seconds": {"wait": 0.25}}
        if number % 10 == 0:
            yield "evaluation", {"version": number, "accuracy": number / 64, "pass@1": number / 128}


EVENTS = [
    {"id": FIRST + 3 * at, "type": type_, "level": "info", "message": "", "data": data, "created_at": f"2026-11-27T03:00:{at:02d}+00:00"}
    for at, (type_, data) in enumerate(happened())
]
REWARDS = {step: step / 8 for step in range(35)}
ACCURACIES = {version: version / 64 for version in (0, 10, 20, 30)}


@pytest.fixture
def fed(tmp_path):
    """Feeds a tracker: some processes die, one goes on to the end, and one finds nothing to do. `feed.started` starts one process."""
    history = tmp_path / "history.json"
    history.write_text(json.dumps(EVENTS))
    environment = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "HOME": str(tmp_path),
    }

    def started(to, *how, **variables):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen([sys.executable, FEEDER, history, to, *map(str, how)], env=environment | variables, text=True, **pipes)

    def ended(process):
        answer, errors = process.communicate()
        return process.returncode, answer, errors

    def feed(to, *deaths):
        _, answer, errors = ended(started(to, *deaths, "succeeded", "succeeded"))
        lines = answer.splitlines()
        codes = [int(line.removeprefix("ended ")) for line in lines if line.startswith("ended ")]
        assert codes == [*(9 for _ in deaths), 0, 0], (answer, errors)
        return [int(line.split()[0]) for line in lines if line[0].isdecimal()]

    feed.started, feed.ended = started, ended
    return feed


def test_tensorboard_has_every_point_once(fed, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from gradbus.trackers.tensorboard import read_events

    assert fed(f"tensorboard:{tmp_path}/board", 7, 11) == [39 - 7 - 11, 0]
    [file] = (tmp_path / "board" / TITLE).iterdir()
    shown = EventAccumulator(str(file.parent), size_guidance={"scalars": 0})
    shown.Reload()
    assert [(value.step, value.value) for value in shown.Scalars("train/reward")] == list(REWARDS.items())
    assert [(value.step, value.value) for value in shown.Scalars("eval/accuracy")] == list(ACCURACIES.items())
    assert len(list(read_events(file))) == 1 + 39


@pytest.mark.parametrize("rest", [1, 30, *(pytest.param(rest, marks=pytest.mark.slow) for rest in (5, 12))])
def test_what_a_power_cut_left_half_written_is_written_again(fed, tmp_path, rest):
    from gradbus.trackers.tensorboard import read_events

    fed(f"tensorboard:{tmp_path}/board")
    [file] = (tmp_path / "board" / TITLE).iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-rest])
    assert fed(f"tensorboard:{tmp_path}/board") == [1, 0]
    assert file.read_bytes() == whole
    file.write_bytes(whole[:-rest] + b"\0" * rest)
    assert [position for _, position in read_events(file)][-1] < len(whole)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_has_every_point_once(fed, tmp_path, kind):
    path = tmp_path / "out" / "run"
    assert fed(f"{kind}:{path}", 7) == [39, 39]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file) if kind == "csv" else map(json.loads, file))
    assert [(int(row["step"]), float(row["train/reward"])) for row in rows if row["group"] == "train"] == list(REWARDS.items())
    assert [(int(row["step"]), float(row["eval/accuracy"])) for row in rows if row["group"] == "eval"] == list(ACCURACIES.items())
    assert list(path.parent.iterdir()) == [path]


def test_mlflow_has_every_point_once(fed, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/mlruns"
    assert fed(f"mlflow:{uri}", 7, 11)[1] == 0
    client = MlflowClient(tracking_uri=uri)
    [run] = client.search_runs([client.get_experiment_by_name("gradbus").experiment_id])
    history = {name: client.get_metric_history(run.info.run_id, name) for name in ("train/reward", "eval/accuracy")}
    assert [(metric.step, metric.value) for metric in history["train/reward"]] == list(REWARDS.items())
    assert [(metric.step, metric.value) for metric in history["eval/accuracy"]] == list(ACCURACIES.items())
    assert (run.info.status, run.data.params["trainer.learning_rate"]) == ("FINISHED", "0.001")
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "eval/pass_1")] == [0, 10 / 128, 20 / 128, 30 / 128]
    assert run.data.params["data.columns.pass_1"] == "x"


def test_mlflow_takes_each_name_that_a_run_has(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    names = ["eval//a", "eval/../a", "./a", "eval/a/", "a" * 300, "ä?\n"]
    sink = open_sink(f"mlflow:file://{tmp_path}", TrackedRun("run", "sums", dict.fromkeys(names, 1)))
    sink.write([Point(1, "eval", 0, 0.0, dict.fromkeys([*names, EVENT], 1.0))])
    sink.close("running")
    again = open_sink(f"mlflow:file://{tmp_path}", TrackedRun("run", "sums", dict.fromkeys(names, 1)))
    assert again.written == 1


def test_an_error_of_a_tracker_s_package_says_what_to_do(fed, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    point = Point(1, "train", 0, 0.0, {"train/reward": 1.0, EVENT: 1.0})
    mlflow = open_sink(f"mlflow:file://{tmp_path}/mlruns", TrackedRun("run", "sums", {}))
    [run] = (tmp_path / "mlruns").glob("*/*/params")
    shutil.rmtree(run.parent)
    with pytest.raises(TrackerError, match=r"cannot write to MLflow: Run '.*' not found.*start the command again"):
        mlflow.write([point])
    code, _, errors = fed.ended(fed.started("wandb", "late"))
    assert (code, "TrackerError: cannot write to W&B: Run (run-0123456789ab-000001) is finished" in errors) == (1, True)


# Those of mlflow and of trackio use the same lock as TensorBoard's, and their packages take seconds to import.
@pytest.mark.parametrize(
    "to", ["tensorboard:{}/board", "wandb", *(pytest.param(one, marks=pytest.mark.slow) for one in ("mlflow:file://{}/mlruns", "trackio"))]
)
def test_a_second_process_is_refused_as_long_as_the_first_one_writes(fed, tmp_path, to):
    place = to.format(tmp_path)
    with fed.started(place, "wait") as first:
        assert first.stdout.readline() == "open\n"
        code, _, errors = fed.ended(fed.started(place))
        assert (code, "another `gradbus track` writes run run-0123456789ab-000001 there already" in errors) == (1, True), errors
        code, answer, errors = fed.ended(first)
        assert (code, answer.split()[:1]) == (0, ["39"]), errors
    assert fed(place)[0] == (39 if to == "wandb" else 0)


@pytest.mark.parametrize("name", ["TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"])
def test_trackio_is_refused_where_it_would_write_elsewhere_than_it_reads(name, monkeypatch):
    monkeypatch.setenv(name, "http://127.0.0.1:1/?write_token=x")
    with pytest.raises(TrackerError, match=f"^only Trackio's local database is written; unset {name}"):
        open_sink("trackio", TrackedRun("run", "sums", {}))


def test_trackio_has_every_point_once(fed, tmp_path):
    assert fed("trackio", 7, 11)[1] == 0
    [database] = (tmp_path / "trackio").rglob("*.db")
    with sqlite3.connect(database) as connection:
        rows = [(step, json.loads(metrics)) for step, metrics in connection.execute("SELECT step, metrics FROM metrics ORDER BY id")]
    assert [(step, row["train/reward"]) for step, row in rows if "train/reward" in row] == list(REWARDS.items())
    assert [(step, row["eval/accuracy"]) for step, row in rows if "eval/accuracy" in row] == list(ACCURACIES.items())


def test_wandb_has_every_point_once_in_the_folder_that_it_syncs(fed, tmp_path):
    fed("wandb:sums", 7, 11)
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(tmp_path)
        if record.WhichOneof("record_type") == "history"
    ]
    assert [(row["train/step"], row["train/reward"]) for row in rows if "train/reward" in row] == list(REWARDS.items())
    assert [(row["eval/version"], row["eval/accuracy"]) for row in rows if "eval/accuracy" in row] == list(ACCURACIES.items())


@pytest.mark.parametrize(("state", "code"), [("running", 0), ("failed", 1)])
def test_wandb_shows_only_a_failed_run_as_failed(fed, tmp_path, state, code):
    ended, _, errors = fed.ended(fed.started("wandb:sums", state))
    assert ended == 0, errors
    exits = [record.exit.exit_code for record in wandb_records(tmp_path) if record.WhichOneof("record_type") == "exit"]
    assert exits == [code]


def wandb_records(folder):
    """What is in W&B's file of the only run below a folder: a log of LevelDB's format, with records that are cut at the ends of blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    data, position, record = file.read_bytes(), len(b":W&B\xe1\xbe\0"), b""
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += 7 + length
        record += data[position - length : position]
        if kind in {1, 4}:
            yield Record.FromString(record)
            record = b""


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("tensorbord:/x", "no tracker is called 'tensorbord', did you mean 'tensorboard'; give one of tensorboard:DIR"),
        ("tensorboard", "tensorboard needs a place to write to; write tensorboard:DIR"),
        ("tensorboard:/proc/none", r"cannot open tensorboard:/proc/none: FileNotFoundError"),
        ("mlflow:nowhere://x", "cannot open mlflow:nowhere://x: .*; check its address"),
    ],
)
def test_a_tracker_that_cannot_be_opened_is_named(to, words):
    with pytest.raises(TrackerError, match=words):
        open_sink(to, TrackedRun("run", "sums", {}))


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "gradbus.trackers.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(TrackerError, match=r"which is not installed; install gradbus\[tensorboard\]"):
        open_sink(f"tensorboard:{tmp_path}", TrackedRun("run", "sums", {}))
