"""Bounds the samples in flight on a server, and keeps new ones out during a load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """A semaphore that can be closed. While it is closed no sample enters, and `idle` waits for those inside to leave."""

    def __init__(self, number: int) -> None:
        self._free = asyncio.Semaphore(number)
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.used = 0

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Takes one slot for the block; waits while all are in use or the slots are closed."""
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

    def close(self) -> None:
        """Lets no sample enter until the end of the next `closed` that succeeds."""
        self._open.clear()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Lets no sample enter during the block, nor after one that fails if the slots were closed before it."""
        was_open = self._open.is_set()
        self.close()
        try:
            yield
            was_open = True
        finally:
            if was_open:
                self._open.set()

    async def idle(self) -> None:
        """Returns when no slot is in use."""
        await self._idle.wait()
