"""Rows of GSM8K (openai/gsm8k, MIT): `question`, and a worked `answer` that ends in `#### 72`."""

from __future__ import annotations

from typing import Any

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
DATASET = "openai/gsm8k"
FILES = {"train": "main/train-00000-of-00001.parquet", "eval": "main/test-00000-of-00001.parquet"}
INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."


def row(raw: dict[str, Any]) -> dict[str, Any]:
    """The prompt as messages, and the number alone as `answer`."""
    answer = raw["answer"].rpartition("####")[2].strip().replace(",", "")
    return {"prompt": [{"role": "user", "content": f"{raw['question']}\n{INSTRUCTION}"}], "answer": answer}
