"""Share of positions that hold the right character, of the longer of the two texts: an answer that goes on pays for it."""

from typing import Any


def grade(sample: dict[str, Any], item: dict[str, Any]) -> float:
    """In [0, 1]."""
    text, answer = sample["output_text"], item["answer"]
    return sum(given == right for given, right in zip(text, answer, strict=False)) / max(len(text), len(answer))
