"""Measures the time during which there was work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_WINDOW_SECONDS: Final = 2.0


class BusyTimer:
    """Sums the seconds spent inside at least one of its blocks; blocks may overlap."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._inside = 0
        self._since = 0.0
        self._before = 0.0

    def __enter__(self) -> None:
        if self._inside == 0:
            self._since = self._clock()
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._inside == 0:
            self._before += self._clock() - self._since

    def total(self) -> float:
        """Seconds until now. May be called from another thread."""
        return self._before + (self._clock() - self._since if self._inside else 0.0)


class BusyShare(BusyTimer):
    """Also gives the busy share of the time, measured over windows of two seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._window_began, self._total_then, self._share = clock(), 0.0, 0.0

    def share(self) -> float:
        """Busy share of the last full window, 0 to 1."""
        now, total = self._clock(), self.total()
        if (elapsed := now - self._window_began) >= _WINDOW_SECONDS:
            self._share = (total - self._total_then) / elapsed
            self._window_began, self._total_then = now, total
        return self._share
