"""What judges have said, and how many calls each run has made, for as long as the service runs."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

_VERDICTS: Final = 1 << 16
_RUNS: Final = 1024


class Verdicts:
    """The numbers that judges gave, by all that they were asked; the one that was used least recently is forgotten first."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[bytes, float] = OrderedDict()
        self._calls: OrderedDict[str, int] = OrderedDict()

    def number(self, url: str, body: bytes) -> float | None:
        """What the judge said to this request, if it was asked."""
        key = _key(url, body)
        if key in self._numbers:
            self._numbers.move_to_end(key)
        return self._numbers.get(key)

    def keep(self, url: str, body: bytes, number: float) -> None:
        """Remembers the number."""
        self._numbers[_key(url, body)] = number
        if len(self._numbers) > _VERDICTS:
            self._numbers.popitem(last=False)

    def calls(self, run: str) -> int:
        """Calls that the run has made."""
        return self._calls.get(run, 0)

    def count(self, run: str) -> None:
        """Counts a call of the run."""
        self._calls[run] = self.calls(run) + 1
        self._calls.move_to_end(run)
        if len(self._calls) > _RUNS:
            self._calls.popitem(last=False)


def _key(url: str, body: bytes) -> bytes:
    return hashlib.sha256(url.encode() + b"\n" + body).digest()
