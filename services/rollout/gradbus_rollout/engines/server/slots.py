"""How many samples the server has at a time, and the gate that a load closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """`async with slots.taken():` waits for a slot and an open gate. Closed, nobody new gets in; `idle` says that all are out."""

    def __init__(self, number: int) -> None:
        self._free = asyncio.Semaphore(number)
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.used = 0

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """One slot, for the length of the block."""
        async with self._free:
            while not self._open.is_set():
                await self._open.wait()
            self.used += 1
            self._idle.clear()
            try:
                yield
            finally:
                self.used -= 1
                if not self.used:
                    self._idle.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Nobody new gets in during the block."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def idle(self) -> None:
        """Returns when no slot is in use."""
        await self._idle.wait()
