"""The example in which a game of several turns is learned from random weights, with three letters in place of fifteen."""

import json
import runpy
from pathlib import Path

import pytest

from gradbus.client import load_spec

GUESS = Path(__file__).parents[3] / "examples" / "guess"
LETTERS = "abc"
SETTINGS = [
    "schedule.steps=50",
    "schedule.groups_per_step=6",
    "environment.max_turns=2",
    "trainer.learning_rate=4e-3",
    "evaluation.every=50",
]


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    """The example's run with these letters, each to be found in two guesses."""
    made = runpy.run_path(str(GUESS / "make_model.py"))
    data = made["make"](tmp_path_factory.mktemp("guess") / "data", made["Settings"]())
    rows = data / "three.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "a-o:", "letter": letter}) + "\n" for letter in LETTERS))
    source = (GUESS / "environment.py").read_text()
    fewer = source.replace(f'LETTERS = "{made["LETTERS"]}"', f'LETTERS = "{LETTERS}"')
    assert fewer != source
    body = load_spec(GUESS / "guess.toml", [*SETTINGS, f"evaluation.samples={len(LETTERS)}"])
    body["model"]["path"], body["data"] = str(data / "model"), {"train": str(rows), "eval": str(rows)}
    body["environment"]["file"] = str(data / "environment.py")
    (data / "environment.py").write_text(fewer)
    return body


def test_a_policy_learns_from_random_weights_to_read_what_the_world_answers(lab, game):
    run = lab.train(game)
    before, *_, after = (event["accuracy"] for event in lab.events(run["id"], "evaluation"))
    assert before < after
    assert after == 1.0, "whoever ignores the answers finds two of three letters in two guesses"
    played = [sample["episode"]["turns"] for sample in lab.samples(run["id"])]
    assert {len(turns) for turns in played} == {1, 2}, "a letter that was found ends the episode"
