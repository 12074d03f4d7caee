"""Who checks when: few checks run at a time, and one of each caller, so that many submissions of one caller make no others wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from gradbus_gateway.http.problems import ProblemError

RETRY_SECONDS: Final = 30


@asynccontextmanager
async def in_turn(seconds: float, *turns: asyncio.Lock | asyncio.Semaphore) -> AsyncIterator[None]:
    """The block runs in all `turns`, which are taken in this order. Raises the problem 503 if they do not come within `seconds`."""
    async with AsyncExitStack() as held:
        try:
            async with asyncio.timeout(seconds):
                for turn in turns:
                    await held.enter_async_context(turn)
        except TimeoutError:
            detail = "other submissions are being checked; send this one again later"
            raise ProblemError(503, "busy", detail, retry_after=RETRY_SECONDS) from None
        yield


class CheckTurns:
    """Turns of one kind of check: `most` at a time, and for each a wait of at most `wait_seconds`."""

    def __init__(self, most: int, wait_seconds: float = 120.0) -> None:
        self._wait_seconds = wait_seconds
        self._slots = asyncio.Semaphore(most)
        self._of_callers = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """The block runs in the caller's turn. Raises the problem 503 if the turn does not come in time."""
        async with in_turn(self._wait_seconds, self._of_callers.setdefault(caller, asyncio.Lock()), self._slots):
            yield
