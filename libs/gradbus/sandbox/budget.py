"""The number of confined processes of all runs together."""

from __future__ import annotations

import asyncio
from typing import Protocol


class ProcessOwner(Protocol):
    """The processes of one run."""

    async def shed(self) -> bool:
        """Stops an idle process; False if there is none."""
        ...


class ProcessBudget:
    """Lets `limit` processes run. At the limit the idle process of another run makes room, else the next that ends."""

    def __init__(self, limit: int) -> None:
        self._permits = asyncio.Semaphore(limit)
        self._owners: dict[ProcessOwner, None] = {}

    def add(self, owner: ProcessOwner) -> None:
        """From here on the owner may be asked for an idle process."""
        self._owners[owner] = None

    def remove(self, owner: ProcessOwner) -> None:
        """The owner ends."""
        self._owners.pop(owner, None)

    @property
    def has_room(self) -> bool:
        """Whether a process may start at once."""
        return not self._permits.locked()

    async def acquire(self, owner: ProcessOwner) -> None:
        """Waits until `owner` may start one more process. Waiting owners come in turn."""
        for other in list(self._owners) if self._permits.locked() else ():
            if other is not owner and await other.shed():
                if other in self._owners:
                    self._owners[other] = self._owners.pop(other)  # the next time another run's process makes room
                break
        await self._permits.acquire()

    def release(self) -> None:
        """A process has ended."""
        self._permits.release()
