"""How much of its time a worker's engine has work."""

from __future__ import annotations

import time
from collections.abc import Callable

_WINDOW_SECONDS = 2.0


class BusyTime:
    """Told at each change whether there is work; says the share of the last seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._marked = clock()
        self._busy = False
        self._spent = 0.0
        self._share = 0.0
        self._before = 0.0

    def total(self) -> float:
        """Seconds with work since the beginning. May be asked by another thread."""
        return self._before + self._spent + (self._clock() - self._marked) * self._busy

    def mark(self, busy: bool) -> None:
        """From now on there is work, or there is none."""
        now = self._clock()
        self._spent += (now - self._marked) * self._busy
        self._marked, self._busy = now, busy

    def share(self) -> float:
        """Share of the last full window."""
        self.mark(self._busy)
        elapsed = self._marked - self._began
        if elapsed >= _WINDOW_SECONDS:
            self._before += self._spent
            self._share, self._spent, self._began = self._spent / elapsed, 0.0, self._marked
        return self._share
