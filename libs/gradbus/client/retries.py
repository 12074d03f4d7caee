"""Retries requests while the gateway restarts, and when it asks to come again later. Every request is idempotent."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
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
        attempts = Attempts(self)
        while True:
            try:
                return request()
            except (ApiError, StackError) as error:
                time.sleep(attempts.pause(error))

    async def run_async(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Like `run`."""
        attempts = Attempts(self)
        while True:
            try:
                return await request()
            except (ApiError, StackError) as error:
                pause = attempts.pause(error)
            await asyncio.sleep(pause)


class Attempts:
    """The failures of one request."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._deadline = 0.0

    def pause(self, error: ApiError | StackError) -> float:
        """Seconds before the next attempt. Raises `error` when the time is up, or if it would come again."""
        asked = error.retry_after if isinstance(error, ApiError) else 0.0
        if asked is None:
            raise error
        now = time.monotonic()
        if not self._failures:
            self._deadline = now + self._policy.seconds
        # Clients that were refused together come again one after the other.
        pause = max(_PAUSES[min(self._failures, len(_PAUSES) - 1)], asked * random.uniform(1.0, 1.25))
        if now + pause > self._deadline:
            raise error
        if not self._failures:
            self._policy.notify(f"{str(error).partition(';')[0]}; retrying for {self._policy.seconds:.0f} s")
        self._failures += 1
        return pause
