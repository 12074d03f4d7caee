"""Compares the greedy answers of two models to the same held-out prompts, with plain transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

LOOKED_AT = 200


def held_out_answers(base: Path, trained: Path, count: int) -> Iterator[tuple[str, str, str, str]]:
    """(prompt, expected, base answer, trained answer) for the first `count` prompts that the base model answers wrongly."""
    rows = [json.loads(line) for line in (base / "eval.jsonl").read_text().splitlines()[:LOOKED_AT]]
    before, after = answers(base / "model", rows), answers(trained, rows)
    wrong = [n for n, row in enumerate(rows) if before[n] != row["answer"]]
    for n in wrong[:count]:
        yield rows[n]["prompt"], rows[n]["answer"], before[n], after[n]


def answers(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    """One answer for each row."""
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompts = tokenizer([row["prompt"] for row in rows], return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.no_grad():
        tokens = model.generate(**prompts, max_new_tokens=8, do_sample=False)
    return tokenizer.batch_decode(tokens[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
