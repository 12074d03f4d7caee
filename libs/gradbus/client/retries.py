"""Requests that outlive a restart of the gateway: each may be repeated without harm, so for a while it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gradbus.errors import StackError

Answer = TypeVar("Answer")
_PAUSES = (0.2, 0.4, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a gateway that does not answer is waited for, and who hears of it."""

    seconds: float = 15.0
    """From the first failure on."""
    say: Callable[[str], None] = lambda _: None
    """Called once a request, when the wait begins."""

    def ask(self, request: Callable[[], Answer]) -> Answer:
        """What `request` returns, as soon as it does not raise StackError. Raises the last StackError when the time is up."""
        deadline, failures = 0.0, 0
        while True:
            try:
                return request()
            except StackError as error:
                now = time.monotonic()
                if not failures:
                    deadline = now + self.seconds
                pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
                if now + pause > deadline:
                    raise
                if not failures:
                    self.say(f"{str(error).partition(';')[0]}; trying for {self.seconds:.0f} s")
                failures += 1
                time.sleep(pause)
