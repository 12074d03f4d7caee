"""The sandboxes of programs that the policy writes."""

from __future__ import annotations

import asyncio

from gradbus.sandbox.commands.run import LEVELS, Level, NoSandboxError, found_level


class Sandboxes:
    """Runs at most `limit` programs of all runs at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.places = asyncio.Semaphore(limit)
        self._finding = asyncio.Lock()
        self._level: Level | None = None

    async def level(self) -> Level:
        """How programs are confined on this machine. Raises NoSandboxError if they cannot be, SandboxError if that is not known now."""
        async with self._finding:
            if self._level is None:
                self._level, reason = await found_level(LEVELS)
                if self._level is None:
                    raise NoSandboxError(f"programs cannot be confined here: {reason}")
            return self._level
