"""Rows of UltraFeedback (HuggingFaceH4/ultrafeedback_binarized, MIT): a prompt, and a better and a worse conversation about it."""

from __future__ import annotations

from typing import Any

MODEL = "Qwen/Qwen3-4B"
DATASET = "HuggingFaceH4/ultrafeedback_binarized"
FILES = {"train": "data/train_prefs-00000-of-00001.parquet", "eval": "data/test_prefs-00000-of-00001.parquet"}


def row(raw: dict[str, Any]) -> dict[str, Any] | None:
    """The prompt as messages, and both answers as text; None for a pair of equal answers, which teaches nothing."""
    chosen, rejected = (raw[side][-1]["content"] for side in ("chosen", "rejected"))
    if chosen == rejected or not raw["prompt"].strip():
        return None
    return {"prompt": [{"role": "user", "content": raw["prompt"]}], "chosen": chosen, "rejected": rejected}
