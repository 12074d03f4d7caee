"""The first seconds of a service of the user's own: one that is still starting is waited for, and its calls do not fail."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from gradbus.user_services.addresses import Endpoint

_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 0.2


class FirstConnection:
    """Waits once for the first connection to a service, at most `_SECONDS` from its first call on."""

    def __init__(self) -> None:
        self._until = 0.0
        self._is_over = False

    async def wait(self, endpoint: Endpoint, deadline_seconds: float) -> None:
        """Returns when the service accepts connections, or when the time is up: then the call itself tells how it fails.

        Never takes more than half of the call's deadline.
        """
        if self._is_over:
            return
        now = time.monotonic()
        self._until = self._until or now + _SECONDS
        give_up_at = min(self._until, now + deadline_seconds / 2)
        while not self._is_over and time.monotonic() < give_up_at:
            self._is_over = await _accepts(endpoint)
            if not self._is_over:
                await asyncio.sleep(_RETRY_SECONDS)
        self._is_over = self._is_over or time.monotonic() >= self._until


async def _accepts(endpoint: Endpoint) -> bool:
    for address in endpoint.addresses:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_SECONDS):
                _, writer = await asyncio.open_connection(str(address), endpoint.port)
            writer.close()
            return True
    return False
