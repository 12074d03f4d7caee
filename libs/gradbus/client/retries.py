"""Retries requests while the gateway restarts, and when it asks to come again later. Every request is idempotent."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gradbus.errors import ApiError, StackError

Answer = TypeVar("Answer")
_PAUSES = (0.2, 0.4, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a request is retried, and the function that is notified of the wait."""

    seconds: float = 15.0
    """Limit, counted from the first failure."""
    notify: Callable[[str], None] = lambda _: None
    """Called with a message once for each request, at its first failure."""

    def run(self, request: Callable[[], Answer]) -> Answer:
        """Calls `request` until it succeeds, and returns its result.

        Raises the last StackError, or ApiError with a `retry_after`, when the time is up; any other error at once.
        """
        deadline, failures = 0.0, 0
        while True:
            try:
                return request()
            except (ApiError, StackError) as error:
                asked = error.retry_after if isinstance(error, ApiError) else 0.0
                if asked is None:
                    raise
                now = time.monotonic()
                if not failures:
                    deadline = now + self.seconds
                # Clients that were refused together come again one after the other.
                pause = max(_PAUSES[min(failures, len(_PAUSES) - 1)], asked * random.uniform(1.0, 1.25))
                if now + pause > deadline:
                    raise
                if not failures:
                    self.notify(f"{str(error).partition(';')[0]}; retrying for {self.seconds:.0f} s")
                failures += 1
                time.sleep(pause)
