"""Share of positions with the right character, relative to the longer text, so that an answer that is too long scores lower."""

from typing import Any


def grade(sample: dict[str, Any], item: dict[str, Any]) -> float:
    """In [0, 1]."""
    text, answer = sample["output_text"], item["answer"]
    return sum(given == right for given, right in zip(text, answer, strict=False)) / max(len(text), len(answer))
