"""Each tracker with its own package: fed by processes that die, it has every point once."""

import csv
import json
import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gradbus.errors import TrackerError
from gradbus.trackers import TrackedRun, open_sink

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
            yield "evaluation", {"version": number, "accuracy": number / 64}


EVENTS = [
    {"id": FIRST + 3 * at, "type": type_, "data": data, "created_at": f"2026-11-27T03:00:{at:02d}+00:00"}
    for at, (type_, data) in enumerate(happened())
]
REWARDS = {step: step / 8 for step in range(35)}
ACCURACIES = {version: version / 64 for version in (0, 10, 20, 30)}


@pytest.fixture
def fed(tmp_path):
    """Feeds a tracker: two processes die, one goes on to the end, and one finds nothing to do."""
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

    def feed(to, *deaths):
        for points in deaths:
            assert subprocess.run([sys.executable, FEEDER, history, to, str(points)], env=environment, check=False).returncode == 9
        written = []
        for _ in range(2):
            answer = subprocess.run([sys.executable, FEEDER, history, to], env=environment, check=True, capture_output=True, text=True)
            written.append(int(answer.stdout.split()[0]))
        return written

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


@pytest.mark.parametrize("rest", [1, 5, 12, 30])
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


def test_a_table_has_every_point_once(fed, tmp_path):
    path = tmp_path / "out" / "run.csv"
    assert fed(f"csv:{path}", 7) == [39, 39]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
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


def test_trackio_has_every_point_once(fed, tmp_path):
    assert fed("trackio", 7, 11)[1] == 0
    [database] = (tmp_path / "trackio").rglob("*.db")
    with sqlite3.connect(database) as connection:
        rows = [(step, json.loads(metrics)) for step, metrics in connection.execute("SELECT step, metrics FROM metrics ORDER BY id")]
    assert [(step, row["train/reward"]) for step, row in rows if "train/reward" in row] == list(REWARDS.items())
    assert [(step, row["eval/accuracy"]) for step, row in rows if "eval/accuracy" in row] == list(ACCURACIES.items())


def test_wandb_has_every_point_once_in_the_folder_that_it_syncs(fed, tmp_path):
    fed("wandb:sums", 7, 11)
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    [file] = folder.glob("*.wandb")
    rows = list(wandb_history(file))
    assert [(row["train/step"], row["train/reward"]) for row in rows if "train/reward" in row] == list(REWARDS.items())
    assert [(row["eval/version"], row["eval/accuracy"]) for row in rows if "eval/accuracy" in row] == list(ACCURACIES.items())


def wandb_history(file):
    """The history in W&B's file: a log of LevelDB's format, with records that are cut at the ends of blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, record = file.read_bytes(), len(b":W&B\xe1\xbe\0"), b""
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += 7 + length
        record += data[position - length : position]
        if kind in {1, 4}:
            found, record = Record.FromString(record), b""
            if found.WhichOneof("record_type") == "history":
                yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found.history.item}


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
