"""Guess a letter from `a` to `o` in four turns, from random weights: blind play finds 4 of 15, the best strategy all.

python examples/guess/make_model.py [--seed 0] [FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples share one module, and are no package

from tiny_models import MADE, cached, character_tokenizer, tiny_qwen2

LETTERS = "abcdefghijklmno"


@dataclass(frozen=True)
class Settings:
    """Settings of the model; a change creates a new one."""

    seed: int = 0
    characters: str = LETTERS + "<>-:"
    """The letters have the ids 3 to 17."""


def make(folder: Path, settings: Settings = Settings()) -> Path:
    """The folder with `model/` and `letters.jsonl`; created at the first call, reused at later ones."""

    def build(target: Path) -> None:
        tokenizer = character_tokenizer(characters=settings.characters)
        tiny_qwen2(tokenizer, settings.seed).save_pretrained(target / "model")
        tokenizer.save_pretrained(target / "model")
        # Nothing is held out: there are no other letters, and what is learned is to read the answers.
        rows = (json.dumps({"prompt": "a-o:", "letter": letter}) for letter in LETTERS)
        (target / "letters.jsonl").write_text("\n".join(rows) + "\n")

    return cached(folder, settings, build)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the model and the data of the guessing game.")
    parser.add_argument("folder", type=Path, nargs="?", default=MADE / "guess")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(make(options.folder, Settings(seed=options.seed)))
