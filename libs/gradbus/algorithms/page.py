"""The tables of docs/algorithms.md that the code knows: presets and estimators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from pydantic import BaseModel

from gradbus.algorithms.estimators import ESTIMATORS
from gradbus.spec import AlgorithmSpec
from gradbus.spec.presets import ABOUT

_TABLE: Final = re.compile(r"(\|(?:---\|)+\n)(?:\| `.*\n)+")


def algorithms_page(page: str) -> str:
    """The page with the rows of these tables as the code has them."""
    return _with_rows(_with_rows(page, "Presets", _presets()), "Advantages", _estimators())


def _with_rows(page: str, heading: str, rows: Iterable[str]) -> str:
    before, title, section = page.partition(f"\n## {heading}\n")
    return before + title + _TABLE.sub(lambda table: table[1] + "".join(f"{row}\n" for row in rows), section, count=1)


def _presets() -> Iterator[str]:
    for name, preset in ABOUT.items():
        paper = f"[{preset.paper}](https://arxiv.org/abs/{preset.paper})"
        yield f"| `{name}` | {paper} | {_differences(name)} | {preset.purpose} |".replace("|  |", "| |")


def _differences(name: str) -> str:
    spec, plain = AlgorithmSpec(name=name), AlgorithmSpec()
    names = [field for field in AlgorithmSpec.model_fields if field != "name" and getattr(spec, field) != getattr(plain, field)]
    return ", ".join(f"`{field}` = {_shown(getattr(spec, field))}" for field in names)


def _shown(value: object) -> str:
    return "unset" if value is None else json.dumps(value.model_dump() if isinstance(value, BaseModel) else value)


def _estimators() -> Iterator[str]:
    for name, estimator in ESTIMATORS.items():
        formula = estimator.formula.replace(" - ", " \N{MINUS SIGN} ")
        yield f"| `{name}` | {formula} | {estimator.needs} |"
