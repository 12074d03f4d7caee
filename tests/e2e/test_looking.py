"""Samples and events of a run, as JSON and as a stream, also through curl."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gradbus.client import document

from .conftest import within


@pytest.fixture(scope="module")
def run(lab, spec, rows):
    held_out = rows([{"prompt": "sun and", "answer": "sun"}])
    run = lab.train(spec(data={"eval": held_out}, schedule={"steps": 4}, evaluation={"every": 2, "samples": 1}))
    within(60.0, lambda: 4 in [answer["step"] for answer in lab.events(run["id"], "checkpoint")])  # the trainer emits it independently
    return run


def test_a_sample_shows_prompt_text_reward_versions_and_step(lab, run):
    samples = lab.samples(run["id"])
    assert len(samples) == 4 * 4 * 4
    for sample in samples:
        assert sample["prompt"].endswith(" and")
        assert sample["reward"] == pytest.approx(len(set(sample["text"])) / 16)
        assert sample["step"] == sample["index"] // 4
        assert [span["version"] for span in sample["versions"]] == [max(0, sample["step"] - 1)]


def test_samples_of_one_step_come_alone_and_in_pages(lab, run):
    first = document(lab.client.samples_page(run["id"], step=2, limit=10))
    rest = document(lab.client.samples_page(run["id"], step=2, limit=10, after=first["next_after"]))
    found = [sample["id"] for sample in first["data"] + rest["data"]]
    assert (first["has_more"], rest["has_more"], len(found), len(set(found))) == (True, False, 16, 16)


def test_the_history_tells_states_steps_checkpoints_and_evaluations(lab, run):
    events = document(lab.client.events_page(run["id"], limit=1000))["data"]
    kinds = {
        kind: [event["data"] for event in events if event["type"] == kind] for kind in ("state", "metrics", "checkpoint", "evaluation")
    }
    assert [data["step"] for data in kinds["metrics"]] == [0, 1, 2, 3]
    assert [data["step"] for data in kinds["checkpoint"]] == [2, 4]
    assert [data["version"] for data in kinds["evaluation"]] == [0, 2, 4]
    states = [data["state"] for data in kinds["state"]]
    assert states[0] in {"queued", "starting"}
    assert states[-1] == "succeeded"


def test_metrics_carry_what_is_charted(lab, run):
    for step in lab.events(run["id"], "metrics"):
        assert step.keys() >= {"reward", "reward_std", "staleness_mean", "staleness_max", "tokens", "loss", "kl", "entropy", "grad_norm"}
        assert step["seconds"].keys() >= {"wait", "train", "publish"}
        assert step["staleness_max"] <= 1


def test_a_stream_of_events_goes_on_behind_the_last_one_seen(lab, run):
    everything = list(map(document, lab.client.stream(run["id"])))
    assert everything == document(lab.client.events_page(run["id"], limit=1000))["data"]
    seen = everything[len(everything) // 2]["id"]
    assert list(map(document, lab.client.stream(run["id"], after=seen))) == [event for event in everything if event["id"] > seen]


def test_the_tracker_of_the_page_on_extending_gets_steps_evaluations_and_states(lab, run):
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text()
    example, logged = {}, []
    exec(re.search(r"## A tracker.*?```python\n(.*?)```", page, re.DOTALL)[1], example)
    example["track"](lab.client, run["id"], logged.append)
    assert [values["step"] for values in logged if "reward" in values] == [0, 1, 2, 3]
    assert [values["version"] for values in logged if "held_out" in values] == [0, 2, 4]
    assert logged[-1] == {"state": "succeeded"}


def test_the_command_shows_a_run(gradbus, run):
    assert "succeeded" in gradbus("show", run["id"]).stdout
    assert "prompt   'sun and'" in gradbus("samples", run["id"], "--limit", 100).stdout
    lines = gradbus("events", run["id"], "--follow").stdout.splitlines()
    assert "succeeded" in lines[-1]
    assert run["id"] in gradbus("runs").stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
class TestCurl:
    """REST without our client."""

    @pytest.fixture
    def curl(self, lab, stack_state):
        key = (stack_state / "secrets" / "api-key").read_text()

        def call(path, *options):
            command = ["curl", "-sS", "--max-time", "30", "-H", f"Authorization: Bearer {key}", *options, lab.client.url + path]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        return call

    def test_uploads_and_submits_and_reads_a_run(self, lab, curl, spec, models):
        body = spec()
        files = {path.name: self.uploaded(curl, path) for path in (models / "llama").iterdir()}
        body["model"] = {"path": "llama", "files": files}
        body["data"]["train"] = self.uploaded(curl, body["data"]["train"])
        answer = json.loads(curl("/v1/runs", "--json", json.dumps(body)))
        lab.ends(answer["id"])
        assert json.loads(curl(f"/v1/runs/{answer['id']}"))["state"] == "succeeded"
        assert len(json.loads(curl(f"/v1/runs/{answer['id']}/samples?step=1&limit=100"))["data"]) == 16

    def test_streams_events_behind_the_last_event_id(self, lab, curl, run):
        seen = document(lab.client.events_page(run["id"]))["data"][1]["id"]
        text = curl(f"/v1/runs/{run['id']}/events", "-N", "-H", "Accept: text/event-stream", "-H", f"Last-Event-ID: {seen}")
        ids = [int(line.removeprefix("id:")) for line in text.splitlines() if line.startswith("id:")]
        assert ids == [event["id"] for event in document(lab.client.events_page(run["id"], limit=1000))["data"][2:]]

    def test_without_a_key_nothing_is_told(self, lab, run):
        answer = subprocess.run(["curl", "-s", f"{lab.client.url}/v1/runs/{run['id']}"], capture_output=True, text=True, check=True).stdout
        assert json.loads(answer)["status"] == 401
        assert run["name"] not in answer

    @staticmethod
    def uploaded(curl, path):
        return json.loads(curl("/v1/files", "-F", f"file=@{path}"))["id"]
