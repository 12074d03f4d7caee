"""Tiny language models that train on one CPU core in minutes, saved in Hugging Face layout."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

SPECIAL = ("<pad>", "<eos>", "<unk>")
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+-*/=()<>[].,:?! "

MADE = Path(__file__).resolve().parents[1] / ".gradbus" / "examples"
"""Folder of the models and datasets that the example specs name."""

Row = Mapping[str, Any]


def held_out(problem: str) -> bool:
    """Whether `problem` is one of the tenth that is never trained on.

    By a hash of the text: a split by a linear formula would hide whole pairs of digits.
    """
    return crc32(problem.encode()) % 10 == 0


def character_tokenizer(chat_template: str | None = None, characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """One token for each character after three special ones, 56 in all, without a BOS token."""
    tokenizer = word_tokenizer(characters, r"[\s\S]")
    tokenizer.chat_template = chat_template
    return tokenizer


def word_tokenizer(words: Iterable[str], pattern: str) -> PreTrainedTokenizerFast:
    """One token for each word after three special ones, without a BOS token; `pattern` finds the words in a text."""
    vocabulary = {token: n for n, token in enumerate((*SPECIAL, *words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def tiny_qwen2(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2ForCausalLM:
    """86,208 parameters, float32, random weights."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**_dimensions(tokenizer))).eval()


def tiny_llama(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """The same size in the Llama family."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**_dimensions(tokenizer))).eval()


def _dimensions(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        # Fast rotations distinguish the positions of such short texts best.
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def save_example(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Iterable[Row]) -> None:
    """Writes `model/`, `train.jsonl` and `eval.jsonl`; a hash of its prompt decides where a row goes.

    Rows are shuffled (always alike), so that the head of the held-out file stands for the whole.
    """
    logging.disable_progress_bar()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    with (folder / "train.jsonl").open("w") as train, (folder / "eval.jsonl").open("w") as evaluation:
        for row in shuffled:
            text = row["prompt"] if isinstance(row["prompt"], str) else json.dumps(row["prompt"])
            (evaluation if held_out(text) else train).write(json.dumps(row) + "\n")


def cached(folder: Path, settings: Any, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` unless an earlier call did so with the same settings.

    It appears whole or not at all: an interrupted `make` leaves nothing that looks finished.
    """
    written = json.dumps(dataclasses.asdict(settings), sort_keys=True)
    digest = hashlib.sha256(written.encode()).hexdigest()
    mark = folder / "settings.sha256"
    if mark.exists() and mark.read_text() == digest:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as working:
        made = Path(working) / "made"
        make(made)
        (made / mark.name).write_text(digest)
        if folder.exists():
            folder.rename(Path(working) / "replaced")
        made.rename(folder)
    return folder
