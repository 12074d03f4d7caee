"""Rows of GSM8K (openai/gsm8k, MIT) for a model with a calculator."""

from __future__ import annotations

from typing import Any

MODEL = "Qwen/Qwen3-8B"
DATASET = "openai/gsm8k"
FILES = {"train": "main/train-00000-of-00001.parquet", "eval": "main/test-00000-of-00001.parquet"}


def row(raw: dict[str, Any]) -> dict[str, Any]:
    """The prompt as messages, and the number alone as `answer`."""
    answer = raw["answer"].rpartition("####")[2].strip().replace(",", "")
    asked = f"{raw['question']}\nUse the calculator for every calculation, and end with the final number. /no_think"
    return {"prompt": [{"role": "user", "content": asked}], "answer": answer}
