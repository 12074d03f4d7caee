"""The README's numbers are those of the code."""

import re
from pathlib import Path

from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.formats.transformers_families import TRANSFORMERS_FAMILIES

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_the_comparison_counts_the_model_families():
    counts = re.search(r"\| (\d+) of its own, (\d+) of them with experts; (\d+) by transformers' models", README).groups()
    with_experts = sum(family.experts is not None for family in MODEL_FAMILIES.values())
    assert tuple(map(int, counts)) == (len(MODEL_FAMILIES), with_experts, len(TRANSFORMERS_FAMILIES))
