"""Reads what a user's function returned as a reward. Standard library only: it runs in the confined process."""

from __future__ import annotations

import math

from gradbus.sandbox.bounds import MAX_COMPONENTS, MAX_NAME

_MAX_INTEGER = 1 << 1000
"""Below the range of a double."""

Result = tuple[float, dict[str, float]] | str
"""A reward with its components, or the reason why there is none."""


def checked_result(result: object, function: str) -> Result:
    """The reward and components that the user's `function` returned, or a reason if a value is not a finite number."""
    if isinstance(result, dict) and len(result) > MAX_COMPONENTS:
        return f"{function} returned {len(result)} named values; at most {MAX_COMPONENTS}"
    parts = result.items() if isinstance(result, dict) else [("reward", result)]
    values: dict[str, float] = {}
    for key, value in parts:
        name = str(key)
        if len(name) > MAX_NAME:
            return f"{function} returned a value whose name has {len(name)} characters; at most {MAX_NAME}"
        if isinstance(value, int) and abs(value) > _MAX_INTEGER:
            return f"{function} returned {name[:80]} = an integer of {value.bit_length()} bits; scale it"
        # Converted before it is checked: a subclass may convert to something else.
        number = float(value) if isinstance(value, int | float) else math.nan
        if not math.isfinite(number):
            return f"{function} returned {name[:80]} = {repr(value)[:80]}, not a finite number"
        values[name] = number
    if "reward" not in values:
        return f"{function} returned a dict without 'reward'"
    return values.pop("reward"), values
