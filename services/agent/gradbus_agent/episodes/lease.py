"""How long an agent may do nothing."""

from __future__ import annotations

import time
from typing import Final

_BEATS: Final = 10
_LEAST_BEATING_SECONDS: Final = 600.0


class Lease:
    """Runs out when its agent did nothing for so many seconds.

    A beat renews it too, but not for ever: an agent whose last request was so long ago that `beating_seconds` are over is given up.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends = False
        self.renew()

    @property
    def beating_seconds(self) -> float:
        """How long beats alone keep it."""
        return self.seconds if self._ends else max(_BEATS * self.seconds, _LEAST_BEATING_SECONDS)

    def renew(self) -> None:
        """The agent asked something new, or got a turn."""
        self._renewed = time.monotonic()
        self._until = self._renewed + self.seconds

    def beat(self) -> None:
        """The agent is alive."""
        self._until = min(time.monotonic() + self.seconds, self._renewed + self.beating_seconds)

    def renew_last(self) -> None:
        """The agent has to end its episode now: beats count no more."""
        self._ends = True
        self.renew()

    @property
    def left(self) -> float:
        """Seconds until it runs out."""
        return self._until - time.monotonic()

    def why_over(self) -> str:
        """What the agent did not do, and what to change."""
        if self._ends:
            said = f"did not end it within {self.seconds:g} s of the run's limit; let it post the end sooner"
        elif time.monotonic() - self._renewed >= self.beating_seconds:
            said = f"asked nothing new for {self.beating_seconds:g} s; let it ask or post the end sooner"
        else:
            said = f"did nothing for {self.seconds:g} s; let it send a beat while it works"
        return f"{said}, or raise environment.step_seconds"
