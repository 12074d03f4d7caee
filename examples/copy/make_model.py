"""The smoke test: copy four digits, `..6132=` -> `6132`, from random weights.

Up to three dots stand in front, so that prompts differ in length.

    python examples/copy/make_model.py [--seed 0] [FOLDER]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples share one module, and are no package

from tiny_models import MADE, cached, character_tokenizer, save_example, tiny_qwen2


@dataclass(frozen=True)
class Settings:
    """Settings of the model and the data; a change creates new ones."""

    seed: int = 0
    rows: int = 2_000
    digits: int = 4
    most_dots: int = 3


def problems(settings: Settings) -> Iterator[dict[str, str]]:
    """`rows` different numbers, each after some dots."""
    draw = random.Random(settings.seed)
    for number in draw.sample(range(10**settings.digits), settings.rows):
        text = f"{number:0{settings.digits}d}"
        yield {"prompt": "." * draw.randint(0, settings.most_dots) + text + "=", "answer": text}


def make(folder: Path, settings: Settings = Settings()) -> Path:
    """The folder with `model/`, `train.jsonl` and `eval.jsonl`; created at the first call, reused at later ones."""

    def build(target: Path) -> None:
        tokenizer = character_tokenizer()
        save_example(target, tiny_qwen2(tokenizer, settings.seed), tokenizer, problems(settings))

    return cached(folder, settings, build)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes a random model and the data of the copying task.")
    parser.add_argument("folder", type=Path, nargs="?", default=MADE / "copy")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(make(options.folder, Settings(seed=options.seed)))
