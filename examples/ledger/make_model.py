"""Amounts in a hidden ledger, `3?` -> `p(3)` -> `5?` -> `p(5)` -> `7.` -> `7.`: a model with random weights, and the pages to begin with.

python examples/ledger/make_model.py [--seed 0] [FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples share one module, and are no package

from tiny_models import MADE, cached, tiny_llama, word_tokenizer

TOOLS = ("on", "off")


@dataclass(frozen=True)
class Settings:
    """Settings of the model and the data; a change creates new ones."""

    seed: int = 0
    tokens: tuple[str, ...] = (*(f"p({n})" for n in range(10)), *(f"{n}." for n in range(10)), *(f"{n}?" for n in range(10)), "?.")
    """The calls and answers come first: their ids are 3 to 22."""
    evaluated: int = 256


def make(folder: Path, settings: Settings = Settings()) -> Path:
    """The folder with `model/`, `train.jsonl` and `eval.jsonl`, the latter two also for a tool that is off.

    Created at the first call, reused at later ones. No ledger is in the data: each group has its own, which the run's seed makes, and
    those of held-out rows are never trained.
    """

    def build(target: Path) -> None:
        tokenizer = word_tokenizer(settings.tokens, r"p\(\d\)|\d[.?]|\?\.")
        tiny_llama(tokenizer, settings.seed).save_pretrained(target / "model")
        tokenizer.save_pretrained(target / "model")
        for tool in TOOLS:
            name = "" if tool == "on" else f"-{tool}"
            for part, count in (("train", 10), ("eval", settings.evaluated)):
                rows = (json.dumps({"prompt": f"{n % 10}?", "page": n % 10, "tool": tool}) + "\n" for n in range(count))
                (target / f"{part}{name}.jsonl").write_text("".join(rows))

    return cached(folder, settings, build)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the model and the data of the ledger.")
    parser.add_argument("folder", type=Path, nargs="?", default=MADE / "ledger")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(make(options.folder, Settings(seed=options.seed)))
