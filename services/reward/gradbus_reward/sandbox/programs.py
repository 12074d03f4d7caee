"""The sandboxes of programs that the policy writes."""

from __future__ import annotations

import asyncio

from gradbus.sandbox.commands.run import FoundLevel


class Sandboxes:
    """Runs at most `limit` programs of all runs at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.places = asyncio.Semaphore(limit)
        self.level = FoundLevel("programs")
