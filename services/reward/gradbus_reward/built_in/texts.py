"""What the built-in graders share: their form, and how a block is taken from a text. Standard library only."""

from __future__ import annotations

from typing import Protocol

_FENCE = "```"


class UngradableError(ValueError):
    """This text or its row cannot be graded, now or later; the message says what to change."""


class Grade(Protocol):
    """From a text, and a reference if the grader has one, to a reward in [0, 1]. Raises UngradableError."""

    def __call__(self, text: str, reference: str, /) -> float:
        """The reward."""
        ...


def last_fenced(text: str) -> str | None:
    """The content of the last block between lines that begin with ```; None if there is none that is closed."""
    lines = text.split("\n")
    fences = [n for n, line in enumerate(lines) if line.lstrip().startswith(_FENCE)]
    if len(fences) < 2:
        return None
    closed = fences[len(fences) // 2 * 2 - 1]
    opened = fences[len(fences) // 2 * 2 - 2]
    return "\n".join(lines[opened + 1 : closed])
