"""Chat prompts for a Llama with random weights: `more e` asks for a text with many `e`s.

python examples/chat/make_model.py [--seed 0] [FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples share one module, and are no package

from tiny_models import MADE, cached, character_tokenizer, save_example, tiny_llama

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
LETTERS = "aeiou"
PHRASES = ("more {}", "{} please", "only {}", "say {}", "write {}", "i like {}", "no text but {}", "now {}", "much {}", "a lot of {}")


@dataclass(frozen=True)
class Settings:
    """Settings of the model; a change creates a new one."""

    seed: int = 0


def conversations() -> Iterator[dict[str, Any]]:
    """Rows with chat messages in `prompt`, and the requested letter."""
    for phrase in PHRASES:
        for letter in LETTERS:
            yield {"prompt": [{"role": "user", "content": phrase.format(letter)}], "letter": letter}


def make(folder: Path, settings: Settings = Settings()) -> Path:
    """The folder with `model/`, `train.jsonl` and `eval.jsonl`; created at the first call, reused at later ones."""

    def build(target: Path) -> None:
        tokenizer = character_tokenizer(CHAT_TEMPLATE)
        save_example(target, tiny_llama(tokenizer, settings.seed), tokenizer, conversations())

    return cached(folder, settings, build)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes a random Llama with a chat template, and prompts in messages.")
    parser.add_argument("folder", type=Path, nargs="?", default=MADE / "chat")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(make(options.folder, Settings(seed=options.seed)))
