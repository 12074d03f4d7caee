"""The newest events of a run that are no metrics."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Final

from gradbus.bus import Event

_MOST_BYTES: Final = 2 << 20
"""Of the events' data and messages, as JSON; one event has no more."""
_PARSED: Final = 5
"""Bytes of memory for a byte of JSON: a number with its name, as Python has them."""


@dataclass(slots=True)
class Happening:
    """An event that is no metrics, with the first step that was reported after it, once there is one."""

    event: Event
    json_bytes: int
    step: int | None = None


class Happenings:
    """Keeps the newest events, oldest first."""

    def __init__(self, most: int) -> None:
        """`most`: how many are kept; fewer where they are large."""
        self._most = most
        self._kept: deque[Happening] = deque()
        self._json_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """An estimate."""
        return self._json_bytes * _PARSED

    def add(self, event: Event) -> None:
        """Takes the next event."""
        happening = Happening(event, len(json.dumps(event.data)) + len(event.message))
        self._kept.append(happening)
        self._json_bytes += happening.json_bytes
        while len(self._kept) > self._most or (len(self._kept) > 1 and self._json_bytes > _MOST_BYTES):
            self._json_bytes -= self._kept.popleft().json_bytes

    def reported(self, step: int) -> None:
        """Gives `step` to the events that came after the step before it."""
        for happening in reversed(self._kept):
            if happening.step is not None:
                break
            happening.step = step

    def newest(self, most: int) -> list[Happening]:
        """The newest `most`, oldest first."""
        return list(self._kept)[-most:] if most else []
