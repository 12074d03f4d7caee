"""Names in a text for users, which is stored twice a second: of a thousand the first few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_NAMED: Final = 5


def listed(names: Sequence[str], count: int | None = None) -> str:
    """The first names, and how many others there are. `count`: of all, if `names` are only the first of them."""
    first = names[:MOST_NAMED]
    others = (len(names) if count is None else count) - len(first)
    return ", ".join(first) + (f" and {others} others" if others else "")
