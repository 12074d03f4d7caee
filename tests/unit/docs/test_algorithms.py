"""docs/algorithms.md names every preset with its values, and every value of an axis."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from gradbus.spec import PRESETS, AlgorithmSpec
from gradbus.spec.presets import CRITICS

PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()


def table(heading):
    """The rows below a heading, by the name in their first cell."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.split("|---", 1)[1].splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


def shown(value):
    return "unset" if value is None else json.dumps(value.model_dump() if isinstance(value, BaseModel) else value)


def differences(name):
    spec, plain = AlgorithmSpec(name=name), AlgorithmSpec()
    names = [field for field in AlgorithmSpec.model_fields if field != "name" and getattr(spec, field) != getattr(plain, field)]
    return ", ".join(f"`{field}` = {shown(getattr(spec, field))}" for field in names)


def test_every_preset_has_a_row():
    assert list(table("Presets")) == list(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_row_has_the_values_of_its_preset(name):
    paper, values, _ = table("Presets")[name]
    assert re.fullmatch(r"\[(\d{4}\.\d{5})\]\(https://arxiv\.org/abs/\1\)", paper)
    assert values == differences(name)


def test_a_row_has_the_critic_of_its_preset():
    rows = table("PPO")
    assert list(rows) == list(CRITICS)
    for name, fields in CRITICS.items():
        assert not fields or rows[name] == [", ".join(f"`{field}` = {shown(value)}" for field, value in fields.items())]


@pytest.mark.parametrize(
    ("heading", "field"),
    [("Advantages", "advantage"), ("Trust regions", "trust_region"), ("Means", "aggregate"), ("KL", "kl_estimator")],
)
def test_a_table_has_a_row_for_each_value_of_its_axis(heading, field):
    assert set(table(heading)) == set(get_args(AlgorithmSpec.model_fields[field].annotation))
