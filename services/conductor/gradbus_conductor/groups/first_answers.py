"""The first call to each service waits until the service is there; as long as it lasts, the run is starting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class FirstAnswers:
    """The services that one run has called, and those whose first call is in progress."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        self._waiting: dict[str, tuple[float, float]] = {}
        """When the first call to a service began and how many seconds it may take, by the service's description."""
        self.scored: set[str] = set()
        """The scorers of which a call has succeeded, by their sections."""

    @contextmanager
    def call(self, service: str, seconds: float) -> Iterator[bool]:
        """Surrounds a call that may take `seconds`.

        Yields whether it is to wait for the service instead of failing: no call to the service has ended yet.
        """
        is_first = service not in self._called
        if is_first:
            self._waiting.setdefault(service, (time.monotonic(), seconds))
        try:
            yield is_first
        finally:
            self._called.add(service)
            self._waiting.pop(service, None)

    def waiting_for(self, seconds: float) -> str:
        """The service whose first call has taken longer than `seconds`, and what to do; else empty."""
        now = time.monotonic()
        for service, (since, allowed) in self._waiting.items():
            if now - since > seconds:
                advice = f"start it, wait if it is starting, or see why it takes so long; its first call may take {allowed:g} s"
                return f"{service}, which has not answered yet: {advice}"
        return ""
