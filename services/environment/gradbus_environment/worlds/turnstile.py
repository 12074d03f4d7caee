"""Who comes next: to a child, one after another in the order in which they came; to a place for a command, the run that has the fewest."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turnstile:
    """Lets one in at a time; those who wait may be turned away."""

    def __init__(self) -> None:
        self.is_taken = False
        self._waiting: deque[asyncio.Future[bool]] = deque()

    @property
    def has_waiting(self) -> bool:
        """Whether somebody waits."""
        return any(not one.done() for one in self._waiting)

    async def enter(self) -> bool:
        """True once it is the caller's turn, who must then `leave`; False if it is turned away."""
        if not self.is_taken:
            self.is_taken = True
            return True
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self.leave()
            raise

    def leave(self) -> None:
        """Lets the next one in."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(True)
                return
        self.is_taken = False

    def turn_away(self) -> None:
        """Turns away all who wait."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(False)


class Places:
    """Places for commands that run at once: one run has at most all but one, and of those who wait the run with the fewest comes next."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._most = max(1, limit - 1)
        self._taken: Counter[object] = Counter()
        self._waiting: dict[asyncio.Future[None], object] = {}
        """The runs of those who wait, in the order in which they came."""

    @asynccontextmanager
    async def taken(self, run: object) -> AsyncIterator[None]:
        """Waits for a place, which the run has until the block ends."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = run
        self._give()
        try:
            await place
            yield
        finally:
            if self._waiting.pop(place, None) is None:
                self._free += 1
                self._taken[run] -= 1
                if not self._taken[run]:
                    del self._taken[run]
            self._give()

    def _give(self) -> None:
        while self._free:
            able = [one for one, run in self._waiting.items() if self._taken[run] < self._most and not one.done()]
            if not able:
                return
            place = min(able, key=lambda one: self._taken[self._waiting[one]])
            self._free -= 1
            self._taken[self._waiting.pop(place)] += 1
            place.set_result(None)
