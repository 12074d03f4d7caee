"""How long an agent may do nothing."""

from __future__ import annotations

import time


class Lease:
    """Runs out when its agent did nothing for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    def renew(self) -> None:
        """The agent did something, or got what it waited for."""
        self._until = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until it runs out."""
        return self._until - time.monotonic()
