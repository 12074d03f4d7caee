"""The recipes: their specs are valid, their rows are right, and each fits the card that its table names."""

import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from gradbus.client import load_spec
from gradbus.client.upload import inline_sources
from gradbus.plan import Workload, card_of, make_plan, read_size
from gradbus.spec import parse_spec

RECIPES = Path(__file__).parents[3] / "recipes"
SPECS = sorted(path for path in RECIPES.glob("*/*.toml") if path.name != "layout.toml")
TABLE = re.compile(r"\| `(\S+)` \| (\d+) x (\S+) \| (\S+) \| ([\d,]+) \+ ([\d,]+) \| ([\d.]+) GiB \| ([\d.]+) s \| ([\d.]+) h \|")


def spec_of(path):
    body = load_spec(path)
    assert inline_sources(body, path.parent) == []
    return parse_spec(body)


def row_of(recipe):
    return runpy.run_path(str(RECIPES / recipe / "rows.py"))["row"]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_spec_is_valid_and_reads_what_is_fetched(path):
    spec = spec_of(path)
    fetched = f"../../.gradbus/recipes/{path.parent.name}"
    assert spec.model.path == f"{fetched}/model"
    assert (spec.data.train, spec.data.eval) == (f"{fetched}/train.jsonl", f"{fetched}/eval.jsonl")


def planned(line):
    path, cards, card, model, prompt, response, *_ = line
    spec, size = spec_of(RECIPES / path), read_size(RECIPES / "models" / model)
    lengths = (int(number.replace(",", "")) for number in (prompt, response))
    return spec, make_plan(spec, size, Workload.of(spec, *lengths), card_of(card), int(cards))


LINES = TABLE.findall((RECIPES / "README.md").read_text())


def test_the_table_has_every_spec():
    assert sorted(line[0] for line in LINES) == [f"{path.parent.name}/{path.name}" for path in SPECS]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_a_recipe_fits_its_cards_and_takes_the_hours_of_the_table(line):
    spec, plan = planned(line)
    placement = "separate" if spec.trains_given else spec.rollout.placement
    found = next(one for one in plan.divisions if one.placement == placement)
    assert found.fits
    assert float(line[6]) == pytest.approx(plan.bill.trainer.bytes / 2**30, abs=0.1)
    assert float(line[7]) == pytest.approx(found.times.step, rel=0.05)
    assert float(line[8]) == pytest.approx(found.times.step * spec.schedule.steps / 3600, abs=0.1)


@pytest.mark.parametrize("recipe", ["maths", "tools"])
def test_an_answer_is_the_number_after_the_marks(recipe):
    found = row_of(recipe)({"question": "How much?", "answer": "He has 1,000 + 234 = <<1000+234=1234>>1234.\n#### 1,234"})
    assert found["answer"] == "1234"
    assert found["prompt"][0]["content"].startswith("How much?\n")


def test_the_first_test_of_a_program_is_shown_and_the_others_are_hidden():
    tests = ["assert f(1) == 2", "assert f(2) == 3", "assert f(3) == 4"]
    found = row_of("code")({"text": "Add one.", "test_list": tests, "test_setup_code": "import math"})
    assert tests[0] in found["prompt"][0]["content"]
    assert not any(test in found["prompt"][0]["content"] for test in tests[1:])
    assert found["tests"] == ["import math\nassert f(2) == 3", "import math\nassert f(3) == 4"]
    assert row_of("code")({"text": "t", "test_list": tests[:1], "test_setup_code": ""})["tests"] == tests[:1]


def test_a_pair_of_equal_answers_is_left_out():
    conversation = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": text}] for text in ("good", "bad")]
    found = row_of("chat")({"prompt": "q", "chosen": conversation[0], "rejected": conversation[1]})
    assert found == {"prompt": [{"role": "user", "content": "q"}], "chosen": "good", "rejected": "bad"}
    assert row_of("chat")({"prompt": "q", "chosen": conversation[0], "rejected": conversation[0]}) is None


@pytest.fixture
def world():
    made = runpy.run_path(str(RECIPES / "tools/environment.py"))["Environment"]()
    made.reset({"answer": "1234"}, 0)
    return made


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("(3 + 4) * 12", "84"),
        ("7 / 2 - -1", "4.5"),
        ("17 // 5 % 2", "1"),
        ("1 / 0", "error: float division by zero"),
        ("2 ** 9999999", "error: only numbers, + - * / // % and parentheses"),
        ("__import__('os')", "error: only numbers, + - * / // % and parentheses"),
        ("1" * 201, "error: at most 200 characters"),
        ("3 +", "error: invalid syntax (<unknown>, line 1)"),
    ],
)
def test_the_calculator_calculates_and_nothing_else(world, expression, result):
    assert world.calculate(expression) == result


def test_the_last_number_is_the_answer(world):
    world.calculate("1 + 1")
    assert world.reward("first 7, so it is 1,234.") == {"reward": 1.0, "right": 1.0, "calls": 1.0}
    assert world.reward("1234, or rather 7")["reward"] == 0.0
    assert world.reward("I do not know")["reward"] == 0.0


def test_the_layout_has_the_cards_of_its_recipe():
    layout = tomllib.loads((RECIPES / "tools/layout.toml").read_text())
    devices = [device for worker in (*layout["trainers"], *layout["rollouts"]) for device in worker["devices"]]
    assert devices == [f"cuda:{number}" for number in range(8)]


def test_rows_are_written_as_json_lines(tmp_path):
    fetch = runpy.run_path(str(RECIPES / "fetch.py"))
    raw = [{"prompt": "q", "chosen": [{"content": "a"}], "rejected": [{"content": text}]} for text in ("b", "a")]
    assert fetch["write_rows"]("chat", raw, tmp_path / "rows.jsonl") == 1
    assert json.loads((tmp_path / "rows.jsonl").read_text())["chosen"] == "a"
