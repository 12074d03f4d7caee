"""What the requests of one run may take in memory together, so that a run with long conversations takes none of another one's."""

from __future__ import annotations

from typing import Final

MAX_RUN_BYTES: Final = 1 << 28
"""Of the requests of a run that wait."""


class ByteBudget:
    """So many bytes, taken and given back."""

    def __init__(self, most: int = MAX_RUN_BYTES) -> None:
        self._left = most

    def take(self, count: int) -> bool:
        """Whether there is room for so many more."""
        if count > self._left:
            return False
        self._left -= count
        return True

    def give_back(self, count: int) -> None:
        """So many are free again."""
        self._left += count
