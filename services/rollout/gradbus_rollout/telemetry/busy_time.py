"""How much of its time a worker's engine has work."""

from __future__ import annotations

import time
from collections.abc import Callable

from gradbus.telemetry.busy import BusyTimer

_WINDOW_SECONDS = 2.0


class BusyTime(BusyTimer):
    """Each task is a block; says the share of the last seconds as well."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._began, self._until, self._share = clock(), 0.0, 0.0

    def share(self) -> float:
        """Share of the last full window."""
        now, total = self._clock(), self.total()
        if (elapsed := now - self._began) >= _WINDOW_SECONDS:
            self._share = (total - self._until) / elapsed
            self._began, self._until = now, total
        return self._share
