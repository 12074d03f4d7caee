"""Share of the answer's positions with the right character."""

from typing import Any


def grade(sample: dict[str, Any], item: dict[str, Any]) -> float:
    """In [0, 1]."""
    answer = item["answer"]
    return sum(given == right for given, right in zip(sample["output_text"], answer, strict=False)) / len(answer)
