"""Wakes followers in small groups: other requests are answered between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_GROUP: Final = 25
_PAUSE_SECONDS: Final = 0.005
"""From one group to the next. Serving a group costs half of it, so all followers together use at most half of a core."""
Wake = Callable[[int], int]
"""Wakes up to so many followers of a feed. Returns how many."""


class Pacer:
    """Wakes the followers of all feeds, the feeds in turn."""

    def __init__(self) -> None:
        self._feeds: dict[Wake, None] = {}
        """In the order of their turns."""
        self._next: asyncio.Handle | None = None

    def ask(self, wake: Wake) -> None:
        """Calls `wake` soon, and again until it wakes fewer followers than it may."""
        self._feeds[wake] = None
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        left = _GROUP
        while self._feeds and left:
            wake = next(iter(self._feeds))
            del self._feeds[wake]
            woken = wake(left)
            if woken == left:
                self._feeds[wake] = None
            left -= woken
        is_resting = left == _GROUP
        self._next = None if is_resting else asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._wake)
