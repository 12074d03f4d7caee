"""Rows of MBPP (google-research-datasets/mbpp, CC BY 4.0): a task in words, and statements that its program must satisfy."""

from __future__ import annotations

from typing import Any

MODEL = "Qwen/Qwen3-1.7B"
DATASET = "google-research-datasets/mbpp"
FILES = {"train": "full/train-00000-of-00001.parquet", "eval": "full/test-00000-of-00001.parquet"}


def row(raw: dict[str, Any]) -> dict[str, Any]:
    """The first test is shown, because it alone says what the function is called; the others are hidden."""
    shown, *hidden = raw["test_list"]
    setup = [raw["test_setup_code"]] if raw["test_setup_code"] else []
    task = f"{raw['text']}\nYour program must satisfy this test:\n{shown}\nAnswer with one block of Python. /no_think"
    return {"prompt": [{"role": "user", "content": task}], "tests": [*("\n".join([*setup, test]) for test in hidden or [shown])]}
