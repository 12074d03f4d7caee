"""The demo's own parts, without a stack; the run itself is what `make demo` shows."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest

from gradbus.spec import parse_spec


@pytest.fixture(scope="module")
def demo(examples, addition):
    """The script, loaded by path; `addition` puts the examples' folder on the path first."""
    specification = importlib.util.spec_from_file_location("example_demo", examples / "demo.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules["example_demo"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def test_the_demo_submits_the_example_with_its_own_base_seed_and_length(demo, examples, tmp_path):
    task = demo.Task(examples / "addition/addition.toml", tmp_path, steps=12, seed=5)
    body = task.body()
    body["reward"]["grader"]["graders"]["digits"] = {"type": "python", "source": "def grade(sample, item): return 1.0"}
    spec = parse_spec(body)
    assert (spec.seed, spec.schedule.steps, spec.model.path) == (5, 12, str(tmp_path / "model"))
    assert spec.evaluation.metric in spec.reward.grader.graders


def test_a_path_is_shown_from_where_we_stand(demo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert demo.shown(tmp_path / "a/b.toml") == "a/b.toml"
    assert demo.shown(tmp_path.parent / "c.toml") == str(tmp_path.parent / "c.toml")


def test_the_answers_shown_are_to_prompts_that_the_base_model_got_wrong(demo, copying, tmp_path):
    from answers import held_out_answers

    first = copying.make(tmp_path / "first", copying.Settings(rows=60))
    second = copying.make(tmp_path / "second", copying.Settings(rows=60, seed=1))
    found = list(held_out_answers(first, second / "model", 2))
    assert len(found) == 2
    for prompt, right, before, _ in found:
        assert right == re.sub(r"\D", "", prompt)
        assert before != right
