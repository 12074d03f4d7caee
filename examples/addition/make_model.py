"""Two-digit addition, `07+58=` -> `065`: the data, and a base model that is right about a third of the time.

Reinforcement learning needs a policy that is sometimes right. A short supervised warm-up gives one; it stops by
accuracy, not by steps, so that every seed starts from the same place.

    python examples/addition/make_model.py [--seed 0] [FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples share one module, and are no package

from tiny_models import MADE, cached, character_tokenizer, held_out, save_example, tiny_qwen2

ANSWER_TOKENS = 4  # three digits and <eos>
MAX_WARM_UP_STEPS = 2_000

Report = Callable[[int, float, float], None]
"""Called with (step, held-out accuracy, seconds)."""


@dataclass(frozen=True)
class Settings:
    """Settings of the base model; a change creates a new one."""

    seed: int = 0
    target_accuracy: float = 0.33
    learning_rate: float = 3e-3
    batch: int = 256


def problems() -> Iterator[dict[str, str]]:
    """All 10,000, in order."""
    for left in range(100):
        for right in range(100):
            yield {"prompt": f"{left:02d}+{right:02d}=", "answer": f"{left + right:03d}"}


def make(folder: Path, settings: Settings = Settings(), report: Report | None = None) -> Path:
    """The folder with `model/`, `train.jsonl` and `eval.jsonl`; created at the first call, reused at later ones."""

    def build(target: Path) -> None:
        rows = list(problems())
        tokenizer = character_tokenizer()
        model = tiny_qwen2(tokenizer, settings.seed)
        warm_up(model, tokenizer, settings, report or _silent)
        save_example(target, model, tokenizer, rows)

    return cached(folder, settings, build)


def warm_up(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: Settings, report: Report) -> None:
    """Supervised training on the problems that are not held out, until held-out greedy exact match reaches the target."""
    torch.set_num_threads(1)
    train = answer_tokens(tokenizer, [row for row in problems() if not held_out(row["prompt"])])
    evaluation = answer_tokens(tokenizer, [row for row in problems() if held_out(row["prompt"])])
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate)
    draw = torch.Generator().manual_seed(settings.seed)
    started = time.monotonic()
    for step in range(1, MAX_WARM_UP_STEPS + 1):
        batch = train[torch.randint(len(train), (settings.batch,), generator=draw)]
        logits = model(batch[:, :-1], use_cache=False).logits[:, -ANSWER_TOKENS:]
        loss = cross_entropy(logits.flatten(0, 1), batch[:, -ANSWER_TOKENS:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            accuracy = exact_match(model, evaluation)
            report(step, accuracy, time.monotonic() - started)
            if accuracy >= settings.target_accuracy:
                return
    raise RuntimeError(f"the warm-up did not reach {settings.target_accuracy} in {MAX_WARM_UP_STEPS} steps; try another seed")


@torch.no_grad()
def exact_match(model: PreTrainedModel, tokens: torch.Tensor) -> float:
    """Share of the rows of `tokens` `[N, 10]` that greedy decoding answers correctly.

    Teacher forcing says the same as decoding: a row counts only if every token of it was the likeliest.
    """
    likeliest = model(tokens[:, :-1], use_cache=False).logits[:, -ANSWER_TOKENS:].argmax(-1)
    return (likeliest == tokens[:, -ANSWER_TOKENS:]).all(1).float().mean().item()


def answer_tokens(tokenizer: PreTrainedTokenizerFast, rows: list[dict[str, str]]) -> torch.Tensor:
    """`[N, 10]` int64: problem, answer, <eos>."""
    return torch.tensor([[*tokenizer.encode(row["prompt"] + row["answer"]), tokenizer.eos_token_id] for row in rows])


def _silent(step: int, accuracy: float, seconds: float) -> None:
    del step, accuracy, seconds


def _print(step: int, accuracy: float, seconds: float) -> None:
    print(f"\rwarm-up step {step}: held-out exact match {accuracy:.2f} after {seconds:.1f} s", end="", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the base model and the data of two-digit addition.")
    parser.add_argument("folder", type=Path, nargs="?", default=MADE / "addition")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"\n{make(options.folder, Settings(seed=options.seed), _print)}")
