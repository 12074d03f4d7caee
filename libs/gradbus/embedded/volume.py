"""Looks after the volume that NATS writes to: once it was full, NATS must be started again when it has room.

NATS refuses for ever a stream that it once could not write, and says so on a page for which the embedded stack has no user. The
volume itself tells as much, and to start NATS once too often does no harm.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_LOOK_SECONDS = 1.0
_FULL_BYTES = 32 << 20
"""With less than this a write may have failed."""
_ROOM_BYTES = 3 << 30
"""What NATS wants to be free when it starts."""


async def watch_volume(folder: Path, start_again: Callable[[], Awaitable[None]]) -> None:
    """Calls `start_again` each time the volume of `folder` was full and has room again, for ever."""
    was_full = False
    while True:
        free = _free_bytes(folder)
        if free < _FULL_BYTES and not was_full:
            was_full = True
            _log.warning("volume_full", folder=str(folder), advice="free 3 GiB there; NATS is then started again by itself")
        elif was_full and free >= _ROOM_BYTES:
            was_full = False
            _log.warning("volume_has_room", folder=str(folder), free_bytes=free, starts="nats")
            await start_again()
        await asyncio.sleep(_LOOK_SECONDS)


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
