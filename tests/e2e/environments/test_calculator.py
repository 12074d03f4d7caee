"""The example in which a model learns to use a tool, on a real stack: a few steps, and the whole of it."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from gradbus.client import load_spec

CALCULATOR = Path(__file__).parents[3] / "examples" / "calculator"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The model and the data of the example, with few rows."""
    made = runpy.run_path(str(CALCULATOR / "make_model.py"))
    return made["make"](tmp_path_factory.mktemp("calculator") / "data", made["Settings"](rows=400, evaluated=8))


def asked(sample):
    """The two numbers of a first turn that is a call with both; a policy that was shown little also draws others."""
    calls = sample["episode"]["turns"][0]["calls"]
    given = json.loads(calls[0]["arguments"]) if calls and calls[0]["status"] == "ok" else {}
    numbers = given.get("left"), given.get("right")
    return numbers if all(type(number) is int for number in numbers) else None


@pytest.mark.slow  # a run in an environment with calls is in the tests of environments; this one has a warm-up of its own
def test_a_warmed_up_model_calls_the_tool_and_is_trained_by_what_it_then_answers(lab, gradbus, data):
    warm_up = load_spec(CALCULATOR / "warm_up.toml", ["schedule.steps=60"])
    warm_up["model"]["path"], warm_up["data"]["train"] = str(data / "model"), str(data / "warm_up.jsonl")
    body = load_spec(CALCULATOR / "calculator.toml", ["schedule.steps=2", "schedule.groups_per_step=4"])
    body["environment"]["file"] = str(CALCULATOR / "environment.py")
    body["model"] = {"run": lab.train(warm_up)["id"]}
    body["data"] |= {"train": str(data / "train.jsonl"), "eval": str(data / "eval.jsonl")}
    run = lab.train(body)
    samples = lab.samples(run["id"])
    assert len(samples) == 2 * 4 * 8
    called = [(sample, numbers) for sample in samples if (numbers := asked(sample)) is not None]
    assert len(called) > 16, "the warm-up has shown how a call is written"
    for sample, (left, right) in called:
        assert [message["content"] for message in sample["episode"]["turns"][0]["messages"]] == [f"{left * right}."]
    assert {sample["components"]["exact"] for sample in samples} <= {0.0, 1.0}
    shown = gradbus("episode", run["id"], called[0][0]["id"])
    assert "call       mul" in shown.stdout, shown.stderr
    assert lab.events(run["id"], "evaluation")[0]["accuracy"] is not None


@pytest.mark.slow
def test_the_whole_of_it_learns_to_use_the_tool():
    demo = [sys.executable, str(CALCULATOR / "demo_tools.py")]
    shown = subprocess.run(demo, capture_output=True, text=True, timeout=1800, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    before, after = map(float, re.search(r"greedily: ([\d.]+)% before, ([\d.]+)% after", shown.stdout).groups())
    assert before <= 5.0
    assert after >= 90.0
