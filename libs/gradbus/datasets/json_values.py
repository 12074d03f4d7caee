"""Values of columns with types, as rows of JSON Lines have them."""

from __future__ import annotations

import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from gradbus.errors import DatasetError
from gradbus.strict_json import MAX_DEPTH


def json_value(value: Any, where: str, column: str, depth: int = 1) -> Any:
    """The value as JSON has it: times as text (ISO 8601), decimals as text; NaN, which pandas writes for a missing number, as null.

    Raises DatasetError, which names the column, for bytes, infinite numbers and whatever else JSON cannot hold.
    """
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    if depth < MAX_DEPTH and isinstance(value, dict):
        return {name: json_value(part, where, column, depth + 1) for name, part in value.items()}
    if depth < MAX_DEPTH and isinstance(value, list):
        return [json_value(part, where, column, depth + 1) for part in value]
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    kinds = {float: "an infinite number", dict: f"more than {MAX_DEPTH} levels", list: f"more than {MAX_DEPTH} levels"}
    kind = kinds.get(type(value), type(value).__name__)
    raise DatasetError(f"{where} has {kind} as {column!r}, which a row cannot hold; leave the column out or write it as text")
