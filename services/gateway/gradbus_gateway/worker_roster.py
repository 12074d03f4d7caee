"""The live workers for whoever asks: of a thousand, each open page would else read and parse them all once a second."""

from __future__ import annotations

import asyncio
from typing import Final

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.bus import Bucket
from gradbus.control.live_workers import LiveWorkers
from gradbus.errors import GradbusError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_FRESH_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 0.2


class WorkerRoster:
    """The bucket `workers`, read when somebody asks, and twice a second at most. Nobody asks most of the time, so it is not followed."""

    def __init__(self, bucket: Bucket) -> None:
        self._view = bucket.snapshot()
        self._live = LiveWorkers(self._view)
        self._reading = asyncio.Lock()
        self._read_at = -_FRESH_SECONDS

    async def current(self) -> LiveWorkers:
        """The workers as of half a second ago at most. Waits while NATS does not answer."""
        clock = asyncio.get_running_loop().time
        async with self._reading:
            while clock() - self._read_at >= _FRESH_SECONDS:
                try:
                    await self._view.read()
                    self._read_at = clock()
                except (NatsError, APIError, GradbusError) as error:
                    _log.info("workers_not_read", error=f"{type(error).__name__}: {error}")
                    await asyncio.sleep(_RETRY_SECONDS)
        return self._live
