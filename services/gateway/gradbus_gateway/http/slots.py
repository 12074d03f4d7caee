"""How many requests or followers may be in progress at a time: beyond that they are refused (`Slots`) or wait (`Turns`)."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict


class Slots:
    """Up to `per_key` slots for each key, and up to `total` in all; 0 is no limit."""

    def __init__(self, per_key: int, total: int = 0) -> None:
        self._per_key = per_key
        self._total = total
        self._taken: Counter[str] = Counter()

    def take(self, key: str) -> bool:
        """Takes a slot if one is free."""
        if (self._per_key and self._taken[key] >= self._per_key) or (self._total and self._taken.total() >= self._total):
            return False
        self._taken[key] += 1
        return True

    def release(self, key: str) -> None:
        """Gives a slot back."""
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]


class Turns:
    """Up to `per_key` turns at a time for each key; who comes beyond that waits in order. 0 is no limit. Keys are few, and are kept."""

    def __init__(self, per_key: int) -> None:
        self._per_key = per_key
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(per_key))

    async def take(self, key: str) -> None:
        """Waits for a turn."""
        if self._per_key:
            await self._turns[key].acquire()

    def release(self, key: str) -> None:
        """Lets the next one have the turn."""
        if self._per_key:
            self._turns[key].release()
