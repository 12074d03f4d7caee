"""The README's numbers are those of the code."""

import re
from pathlib import Path

from gradbus.formats.model_families import MODEL_FAMILIES
from gradbus.formats.transformers_families import TRANSFORMERS_FAMILIES

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_the_comparison_counts_the_model_families():
    own, others = re.search(r"\| (\d+) of its own, dense and with experts; (\d+) by transformers' models", README).groups()
    assert (int(own), int(others)) == (len(MODEL_FAMILIES), len(TRANSFORMERS_FAMILIES))
