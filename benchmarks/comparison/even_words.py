"""Share of the sample's words that are even numbers: cheap, learnable, and different for nearly every sample."""

from typing import Any


def grade(sample: dict[str, Any], item: dict[str, Any]) -> float:  # noqa: ARG001
    """In [0, 1]."""
    words = sample["output_text"].split()
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))
