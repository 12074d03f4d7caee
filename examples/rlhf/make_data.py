"""Two-digit addition for the three stages of RLHF: a model with random weights, answers to imitate, and pairs of answers to rank.

python examples/rlhf/make_data.py [--seed 0] [FOLDER]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples share modules, and are no package

from addition.make_model import problems
from tiny_models import MADE, cached, character_tokenizer, held_out, save_example, tiny_qwen2

PAIRS = 4
_ONE_DIGIT = 0.7
_SUMS = 199


@dataclass(frozen=True)
class Settings:
    """Settings of the data; a change creates new ones."""

    seed: int = 0


def make(folder: Path, settings: Settings = Settings()) -> Path:
    """The folder with `model/`, `train.jsonl`, `pairs.jsonl` and `eval.jsonl`; created at the first call, reused at later ones."""

    def build(target: Path) -> None:
        tokenizer = character_tokenizer()
        save_example(target, tiny_qwen2(tokenizer, settings.seed), tokenizer, problems())
        (target / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs(settings.seed)))

    return cached(folder, settings, build)


def pairs(seed: int) -> Iterator[dict[str, str]]:
    """Pairs of a right and a wrong answer, in random order: each sum that is not held out comes `PAIRS` times."""
    draw = random.Random(seed)
    rows = [row for row in problems() if not held_out(row["prompt"])] * PAIRS
    draw.shuffle(rows)
    for row in rows:
        yield {"prompt": row["prompt"], "chosen": row["answer"], "rejected": wrong_answer(row["answer"], draw)}


def wrong_answer(right: str, draw: random.Random) -> str:
    """An answer as a policy may give it: with one wrong digit, or any other sum."""
    while True:
        digits = list(right)
        if draw.random() < _ONE_DIGIT:
            digits[draw.randrange(len(digits))] = str(draw.randrange(10))
        else:
            digits = list(f"{draw.randrange(_SUMS):03d}")
        if (answer := "".join(digits)) != right:
            return answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the model and the data of the three stages.")
    parser.add_argument("folder", type=Path, nargs="?", default=MADE / "rlhf")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(make(options.folder, Settings(seed=options.seed)))
