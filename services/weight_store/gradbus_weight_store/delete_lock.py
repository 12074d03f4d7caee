"""A lock between storing manifests and deleting blobs: many may store at once, deleting is exclusive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StoreDeleteLock:
    """Keeps a blob from being deleted between the check that it is stored and the write of a manifest that names it.

    Deleting waits for every store under way, since the trainer waits for those.
    """

    def __init__(self) -> None:
        self._storing = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def storing(self) -> AsyncIterator[None]:
        """Any number of callers at once."""
        async with self._changed:
            self._storing += 1
        try:
            yield
        finally:
            async with self._changed:
                self._storing -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def deleting(self) -> AsyncIterator[None]:
        """One caller alone; storing waits until it is done."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._storing == 0)
            yield
