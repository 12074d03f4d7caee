"""A reward function as verl wants it."""

import re
from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, float]:  # noqa: ARG001 - verl's
    """1.0 if the answer after #### is the true one."""
    found = re.findall(r"#### (-?[0-9.,]+)", solution_str)
    return {"score": float(bool(found) and found[-1].replace(",", "") == ground_truth), "answered": float(bool(found))}
