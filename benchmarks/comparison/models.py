"""Random Llama models of several sizes, prompts of about 64 tokens, and the run spec that trains them.

Samples never stop before `NEW_TOKENS`: the tokenizer's end token has the id after the model's last one, so no logit belongs to it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from tiny_models import MADE, cached, save_example

VOCABULARY: Final = 8192
GROUPS: Final = 8
GROUP_SIZE: Final = 8
NEW_TOKENS: Final = 128
TRAINER_THREADS: Final = 2
LEARNING_RATE: Final = 1e-5
_PROMPT_WORDS: Final = (56, 72)
_ROWS: Final = 256


@dataclass(frozen=True)
class Shape:
    """A Llama model with tied embeddings; a change creates a new one."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    seed: int = 0


SHAPES: Final = {
    "5m": Shape(192, 544, 8, 6, 3),
    "27m": Shape(512, 1376, 8, 8, 4),
    "60m": Shape(640, 1728, 12, 10, 5),
    "150m": Shape(896, 2432, 16, 14, 7),
    "450m": Shape(1280, 3456, 24, 20, 10),
}
"""4,967,616, 27,402,752, 59,817,600, 150,500,224 and 447,018,240 parameters, embeddings included; the last is meant for GPUs."""


def make(size: str) -> Path:
    """The folder with `model/`, float32 and with a tokenizer, and `train.jsonl`; created at the first call."""
    shape = SHAPES[size]

    def build(folder: Path) -> None:
        tokenizer = word_tokenizer()
        save_example(folder, random_llama(shape, tokenizer), tokenizer, prompts())

    return cached(MADE / f"random-{size}", shape, build)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """`<pad>`, a token for each number from 1 to 8,191, and `<eos>`, whose id 8,192 the models do not have."""
    words = ["<pad>", *(str(number) for number in range(1, VOCABULARY)), "<eos>"]
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


def random_llama(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Float32, random weights."""
    torch.manual_seed(shape.seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        max_position_embeddings=_PROMPT_WORDS[1] + NEW_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).eval()


def prompts() -> Iterator[dict[str, str]]:
    """Rows with 56 to 72 random words."""
    draw = random.Random(0)
    for _ in range(_ROWS):
        words = draw.choices(range(1, VOCABULARY), k=draw.randint(*_PROMPT_WORDS))
        yield {"prompt": " ".join(map(str, words))}


def run_spec(base: Path, steps: int, seed: int, dtype: str = "fp32") -> dict[str, Any]:
    """Gradbus's spec; every setting that TRL has too is equal there."""
    return {
        "name": base.name,
        "seed": seed,
        "model": {"path": str(base / "model")},
        "data": {"train": str(base / "train.jsonl")},
        "rollout": {"slots": GROUPS * GROUP_SIZE, "group_size": GROUP_SIZE, "max_new_tokens": NEW_TOKENS, "threads": 1},
        "reward": {"grader": {"type": "python", "source": Path(__file__).with_name("even_words.py").read_text()}},
        "schedule": {"max_staleness": 1, "groups_per_step": GROUPS, "steps": steps},
        "trainer": {"dtype": dtype, "learning_rate": LEARNING_RATE, "threads": TRAINER_THREADS},
        "checkpoint": {"every": steps},
    }
