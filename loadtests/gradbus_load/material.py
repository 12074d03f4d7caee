"""The smallest model and data that the services accept, with room for long responses, for stub runs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONTEXT = 8192
_ROWS = 512
Json = dict[str, Any]


def make(folder: Path) -> Path:
    """The folder with `model/` and `train.jsonl`."""
    sys.path.insert(0, str(EXAMPLES))  # the examples share a module but are not a package
    tokenizer = importlib.import_module("tiny_models").character_tokenizer()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    size: Json = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    ends: Json = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=CONTEXT, tie_word_embeddings=True, **size, **ends)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = ({"prompt": f"{row:04d}: which letter comes next?", "answer": "abcdefgh"[row % 8]} for row in range(_ROWS))
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def spec(folder: Path, name: str, **sections: Json) -> Json:
    """A run with reward 1 when a letter occurs in the response: rewards vary within groups, and scoring is cheap."""
    grader = {"type": "string_check", "operation": "like", "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"}
    return {
        "name": name,
        "model": {"path": str(folder / "model")},
        "data": {"train": str(folder / "train.jsonl")},
        "reward": {"grader": grader},
        "trainer": {"learning_rate": 1e-3},
        **sections,
    }
