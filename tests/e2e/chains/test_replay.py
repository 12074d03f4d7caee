"""Runs of a real stack are trained again from its object storage, after every service and server has ended."""

import json

import pytest
from smoke import EXAMPLE, make_example, smoke_spec
from typer.testing import CliRunner

from gradbus.cli.__main__ import app

FORK = {"fork_of": {"run": "adapters"}, "name": "adapters-on", "schedule": {"steps": 6}}
OTHERS = ("adapters", "copy-digits")
LORA = {"trainer": {"learning_rate": 1e-2, "lora": {"rank": 2}}, "algorithm": {"kl": 0.05}}


@pytest.fixture(scope="module")
def ended(stack, lab_on, spec, tmp_path_factory):
    """The folder of a stack that has ended, and by name the digest in which each run ended. Retention has deleted all but the last.

    `copy-digits` is the run of `make demo DEMO=--smoke`, but for its length.
    """
    short = {"schedule": {"steps": 6}, "checkpoint": {"every": 2, "keep": 1}}
    bodies = [spec(name="full", **short), spec(name="adapters", **short, **LORA)]
    bodies.append(smoke_spec(make_example(tmp_path_factory.mktemp("copy")), **short))
    digests = {}
    with stack() as state, lab_on(state) as lab:
        for body in [*bodies, FORK]:
            run = lab.ends(lab.submit(body, base_dir=EXAMPLE))
            assert lab.learned(run)
            digests[run["name"]] = lab.final_digest(run)
    assert not (state / "stack.json").exists(), "no service and no server runs"
    return state, digests


def replayed(state, *arguments):
    return CliRunner().invoke(app, ["replay", *arguments, "--state", str(state)])


@pytest.mark.parametrize("name", ["full", "adapters-on", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_replay_ends_in_the_digest_of_the_run(ended, name):
    state, digests = ended
    answer = replayed(state, name, "--json")
    assert answer.exit_code == 0, answer.exception
    found = json.loads(answer.stdout)
    assert (found["to"], found["digest"], found["checkpoints"]) == (6, digests[name], [6])
    assert found["versions"] == list(range(7))


def test_a_replay_in_words_and_of_a_part(ended):
    state, _ = ended
    said = replayed(state, "last", "--to", "3").stdout
    assert "version 3 of run-" in said
    assert "trained 3 steps from the base model; equal: 4 versions, 0 checkpoints" in said
