"""Who may use a child next: one after another, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque


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
