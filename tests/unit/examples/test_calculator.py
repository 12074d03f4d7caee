"""The calculator: its data, its world, and its specs."""

import json
import runpy

import pytest
from transformers import AutoTokenizer

from gradbus.client import load_spec
from gradbus.spec import parse_spec


@pytest.fixture(scope="module")
def folder(calculator, tmp_path_factory):
    return calculator.make(tmp_path_factory.mktemp("examples") / "calculator", calculator.Settings(rows=300, evaluated=40))


@pytest.fixture
def world(examples):
    made = runpy.run_path(str(examples / "calculator/environment.py"))["Environment"]()
    made.reset({"left": 473, "right": 286, "tool": "on"}, 0)
    return made


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_evaluated_is_never_shown(folder):
    shown = {row["prompt"][:8] for name in ("train", "warm_up") for row in rows(folder / f"{name}.jsonl")}
    assert len(rows(folder / "eval.jsonl")) == 40
    assert not shown & {row["prompt"] for row in rows(folder / "eval.jsonl")}


def test_the_ablations_have_the_same_rows_with_another_tool(folder):
    for name in ("train", "eval"):
        files = [rows(folder / f"{name}{tool}.jsonl") for tool in ("", "-off", "-wrong")]
        assert [{row.pop("tool") for row in given} for given in files] == [{"on"}, {"off"}, {"wrong"}]
        assert files[0] == files[1] == files[2]


def test_a_little_less_than_half_of_the_calls_and_of_the_answers_shown_is_right(folder):
    shown = rows(folder / "warm_up.jsonl")
    calls = [row for row in shown if row["completion"].startswith("mul")]
    right = [row for row in calls if row["completion"][4:-1] == row["prompt"][:-1].replace("*", ",")]
    answers = [row for row in shown if row not in calls]
    assert len(calls) == len(answers) == 300
    assert 105 < len(right) < 165
    assert 105 < sum(row["prompt"].endswith(row["completion"]) for row in answers) < 165


def test_every_character_is_a_token_and_two_of_them_end_a_turn(folder, examples):
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    used = set("".join(row["prompt"] + row["completion"] for row in rows(folder / "warm_up.jsonl")))
    assert tokenizer.unk_token_id not in tokenizer.encode("".join(sorted(used)) + "?")
    spec = load_spec(examples / "calculator/calculator.toml", [])
    assert spec["rollout"]["stop_token_ids"] == tokenizer.encode(").")


def test_the_longest_call_fits_a_turn(examples):
    spec = load_spec(examples / "calculator/calculator.toml", [])
    assert spec["rollout"]["max_new_tokens"] > len("mul(999,999)")


@pytest.mark.parametrize("name", ["warm_up", "calculator"])
def test_a_spec_is_valid(examples, name):
    body = load_spec(examples / f"calculator/{name}.toml", [])
    if "environment" in body:
        body["environment"] = {"source": (examples / "calculator" / body["environment"].pop("file")).read_text(), **body["environment"]}
    assert parse_spec(body).name.startswith("calculator")


def test_the_right_answer_to_the_right_call_is_worth_1(world):
    assert world.mul(473, 286) == "135278."
    assert world.reward("135278.") == {"reward": 1.0, "exact": 1.0, "asked": 1.0, "answered": 1.0}


def test_the_result_of_another_call_is_worth_a_part(world):
    world.mul(473, 473)
    found = world.reward("223729.")
    assert (found["exact"], found["answered"]) == (0.0, 1.0)
    assert found["asked"] == pytest.approx(4 / 7)
    assert found["reward"] == pytest.approx(0.25 * 4 / 7 + 0.25)


def test_an_answer_without_a_call_is_compared_with_the_product(world):
    assert world.reward("135278.")["reward"] == pytest.approx(0.75)
    assert world.reward("")["reward"] == 0.0


@pytest.mark.parametrize(("tool", "said"), [("off", "?."), ("wrong", "246389.")])
def test_a_tool_that_is_off_or_wrong_does_not_say_the_product(world, tool, said):
    world.item["tool"] = tool
    assert world.mul(473, 286) == said
