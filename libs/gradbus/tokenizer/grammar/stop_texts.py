"""Texts at which an agent wants a turn to end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopHit:
    """Where a turn ends by a stop text."""

    kept: int
    """Tokens up to the one that completes the text. That is how far an engine draws which looks at the text after each token."""
    text: str
    """The stop text."""
    before: str
    """What the turn says before it."""


def stop_hit(drawn: Sequence[int], stop: Sequence[str], decoded: Callable[[Sequence[int]], str]) -> StopHit | None:
    """The first of the texts in a turn `[T]`; None without one. A text once decoded is taken to stay in the text of more tokens."""

    def has_one(count: int) -> bool:
        said = decoded(drawn[:count])
        return any(text in said for text in stop)

    if not has_one(len(drawn)):
        return None
    kept = bisect_left(range(len(drawn)), True, key=has_one)
    said = decoded(drawn[:kept])
    at, text = min((said.find(text), text) for text in stop if text in said)
    return StopHit(kept, text, said[:at])
