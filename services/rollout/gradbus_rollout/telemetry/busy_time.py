"""The share of a worker's time in which its engine has work."""

from __future__ import annotations

import time
from collections.abc import Callable

from gradbus.telemetry.busy import BusyTimer

_WINDOW_SECONDS = 2.0


class BusyTime(BusyTimer):
    """Each task is a block of work; `share` is measured over windows of two seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._began, self._until, self._share = clock(), 0.0, 0.0

    def share(self) -> float:
        """Busy share of the last full window, 0 to 1."""
        now, total = self._clock(), self.total()
        if (elapsed := now - self._began) >= _WINDOW_SECONDS:
            self._share = (total - self._until) / elapsed
            self._began, self._until = now, total
        return self._share
