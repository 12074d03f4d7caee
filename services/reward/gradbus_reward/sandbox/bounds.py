"""How large the result of one row may be: the child keeps to it, and the parent does not trust the child."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from gradbus.sandbox.bounds import MAX_COMPONENTS, MAX_NAME, MAX_REASON, MAX_WHERE


def is_bounded(result: object, parts: AbstractSet[str]) -> bool:
    """Whether the child could have sent this. A grader may write anything into the pipe, and a call keeps the results of all its rows."""
    return isinstance(result, dict) and result.keys() <= parts and all(map(_is_bounded_part, result.values()))


def _is_bounded_part(part: object) -> bool:
    match part:
        case str():
            return len(part) <= MAX_REASON + MAX_WHERE
        case [int() | float(), dict() as components]:
            # Without the reward among them.
            return len(components) < MAX_COMPONENTS and all(
                len(name) <= MAX_NAME and isinstance(value, int | float) for name, value in components.items()
            )
    return False
