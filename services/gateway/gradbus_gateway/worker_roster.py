"""The live workers for whoever asks: of a thousand, each open page would else read and parse them all once a second."""

from __future__ import annotations

import asyncio
from typing import Final

from gradbus.bus import Bucket
from gradbus.control.live_workers import LiveWorkers

_FRESH_SECONDS: Final = 0.5


class WorkerRoster:
    """The bucket `workers`, read when somebody asks, and twice a second at most. Nobody asks most of the time, so it is not followed."""

    def __init__(self, bucket: Bucket) -> None:
        self._view = bucket.snapshot()
        self._live = LiveWorkers(self._view)
        self._reading = asyncio.Lock()
        self._read_at = -_FRESH_SECONDS

    async def current(self) -> LiveWorkers:
        """The workers as of half a second ago at most. Raises an error of NATS."""
        clock = asyncio.get_running_loop().time
        async with self._reading:
            if clock() - self._read_at >= _FRESH_SECONDS:
                await self._view.read()
                self._read_at = clock()
        return self._live
