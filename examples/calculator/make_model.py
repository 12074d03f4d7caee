"""Three-digit products by a tool, `473*286=` -> `mul(473,286)` -> `135278.` -> `135278.`: a model with random weights, and the data.

A warm-up shows how calls and answers are written, by somebody clumsy who is right a little less than half of the time: the greedy policy
is mostly wrong.

    python examples/calculator/make_model.py [--seed 0] [FOLDER]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples share one module, and are no package

from tiny_models import MADE, Row, cached, character_tokenizer, held_out, tiny_qwen2

TOOLS = ("on", "off", "wrong")
_LARGEST = 999


@dataclass(frozen=True)
class Settings:
    """Settings of the model and the data; a change creates new ones."""

    seed: int = 0
    characters: str = ").0123456789*=(,?mul"
    """The two that end a turn come first: their ids are 3 and 4."""
    right: float = 0.45
    """Share of the warm-up's calls that are right, and of its answers."""
    rows: int = 8_000
    evaluated: int = 512
    smallest: int = 320
    """Of the numbers: all products then have six digits."""


def make(folder: Path, settings: Settings = Settings()) -> Path:
    """The folder with `model/`, `warm_up.jsonl`, `train.jsonl` and `eval.jsonl`, the latter two also for a tool that is off or wrong.

    Created at the first call, reused at later ones.
    """

    def build(target: Path) -> None:
        tokenizer = character_tokenizer(characters=settings.characters)
        tiny_qwen2(tokenizer, settings.seed).save_pretrained(target / "model")
        tokenizer.save_pretrained(target / "model")
        draw = random.Random(settings.seed)
        train = list(islice(problems(draw, settings.smallest, wanted=False), settings.rows))
        evaluation = list(islice(problems(draw, settings.smallest, wanted=True), settings.evaluated))
        write(target / "warm_up.jsonl", (row for problem in train for row in shown(problem, settings.right, draw)))
        for tool in TOOLS:
            name = "" if tool == "on" else f"-{tool}"
            write(target / f"train{name}.jsonl", ({**row, "tool": tool} for row in train))
            write(target / f"eval{name}.jsonl", ({**row, "tool": tool} for row in evaluation))

    return cached(folder, settings, build)


def problems(draw: random.Random, smallest: int, *, wanted: bool) -> Iterator[dict[str, Any]]:
    """Pairs of numbers; a hash says which of them are held out, and `wanted` which are given."""
    while True:
        left, right = draw.randint(smallest, _LARGEST), draw.randint(smallest, _LARGEST)
        prompt = f"{left}*{right}="
        if held_out(prompt) == wanted:
            yield {"prompt": prompt, "left": left, "right": right}


def shown(problem: Row, right: float, draw: random.Random) -> Iterator[Row]:
    """A call and an answer by somebody clumsy, who is right with a probability of `right` in each.

    Else the call asks for the square of the first number, and the answer is that number.
    """
    prompt, left = problem["prompt"], problem["left"]
    asked = problem["right"] if draw.random() < right else left
    call, result = f"mul({left},{asked})", f"{left * asked}."
    yield {"prompt": prompt, "completion": call}
    yield {"prompt": prompt + call + result, "completion": result if draw.random() < right else f"{left}."}


def write(path: Path, rows: Iterable[Row]) -> None:
    """Writes JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the model and the data of the calculator.")
    parser.add_argument("folder", type=Path, nargs="?", default=MADE / "calculator")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(make(options.folder, Settings(seed=options.seed)))
