"""What judges have said, and how many calls each part of a run has made, for as long as the service runs."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

from gradbus.lru_cache import LruCache

_VERDICTS: Final = 1 << 16
_PARTS: Final = 1 << 14
PartId = tuple[str, str, str]
"""A run, the path of its scorer and the name of a part."""


class Verdicts:
    """The numbers that judges gave, by all that they were asked; the one that was used least recently is forgotten first."""

    def __init__(self) -> None:
        self._numbers: LruCache[bytes, float] = LruCache(_VERDICTS)
        self._calls: OrderedDict[PartId, int] = OrderedDict()

    def number(self, asked: bytes) -> float | None:
        """What the judge said to this, if it was asked."""
        return self._numbers.get(_key(asked))

    def keep(self, asked: bytes, number: float) -> None:
        """Remembers the number."""
        self._numbers.put(_key(asked), number)

    def calls(self, part: PartId) -> int:
        """Calls that the part has made."""
        return self._calls.get(part, 0)

    def count(self, part: PartId) -> None:
        """Counts a call of the part."""
        self._calls[part] = self.calls(part) + 1
        self._calls.move_to_end(part)
        if len(self._calls) > _PARTS:
            self._calls.popitem(last=False)


def _key(asked: bytes) -> bytes:
    return hashlib.sha256(asked).digest()
