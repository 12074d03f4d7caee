"""Many may store at once; deleting is done alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StoreDeleteLock:
    """Closes the gap between asking whether a blob is there and storing a manifest that names it.

    Whoever deletes waits for those inside: publishing is what the trainer waits for.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def storing(self) -> AsyncIterator[None]:
        """Any number at once."""
        async with self._changed:
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def deleting(self) -> AsyncIterator[None]:
        """Alone; keeps the others out until it is done."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._inside == 0)
            yield
