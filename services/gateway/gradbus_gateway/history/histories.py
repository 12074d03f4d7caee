"""The histories of the runs that were looked at last."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus import Bus, EventLog
from gradbus.telemetry import get_logger
from gradbus_gateway.history.run_history import RunHistory
from gradbus_gateway.history.size import Size

_log = get_logger(__name__)
_MOST: Final = Size(runs=1024, files=128, disk_bytes=2 << 30, memory_bytes=256 << 20)
"""Of all histories."""
_READERS: Final = 2
"""Histories that are read at a time."""
_WAIT_SECONDS: Final = 2.0
"""How long a request waits for what is still unread."""
_BREATH_EVENTS: Final = 50
"""So many events are read before other requests have their turn."""
_FORGET_EVENTS: Final = 1000
"""So many events are read before the size of all histories is looked at again."""


@dataclass(slots=True)
class _Entry:
    history: RunHistory
    reading: asyncio.Task[None] | None = None

    @property
    def is_read(self) -> bool:
        return self.reading is not None and not self.reading.done()


class Histories:
    """Reads a run's events once, whoever asks, and those that came since whenever somebody asks again."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        """`folder` is for files without names, of 8 bytes a number; it is made when a run needs one."""
        self._bus = bus
        self._folder = folder
        self._entries = OrderedDict[str, _Entry]()
        self._turns = asyncio.Semaphore(_READERS)

    async def of(self, run_id: str) -> tuple[RunHistory, bool]:
        """A run's history as far as it is read after two seconds, and whether that is all.

        Raises an error of NATS, and DiskError when the folder cannot be written.
        """
        entry = self._entry(run_id)
        reading = entry.reading
        if reading is None or reading.done():
            reading = entry.reading = asyncio.create_task(self._read(run_id, entry.history), name=f"history of {run_id}")
            reading.add_done_callback(partial(_look_at, run_id))
        await asyncio.wait({reading}, timeout=_WAIT_SECONDS)
        if reading.done() and not reading.cancelled():
            reading.result()
            return entry.history, True
        return entry.history, False

    async def close(self) -> None:
        """Ends what is being read."""
        for entry in self._entries.values():
            if entry.reading is not None:
                await cancel_and_wait(entry.reading)
        self._entries.clear()

    def _entry(self, run_id: str) -> _Entry:
        entry = self._entries.setdefault(run_id, _Entry(RunHistory(run_id, self._folder)))
        self._entries.move_to_end(run_id)
        return entry

    def _forget_some(self) -> None:
        """Forgets the histories that were asked for longest ago while all are too many or too large, but none that is being read."""
        sizes = {run_id: entry.history.size for run_id, entry in self._entries.items()}
        for run_id, entry in list(self._entries.items()):
            if Size.total(sizes.values()).fits(_MOST):
                return
            if not entry.is_read:
                del self._entries[run_id], sizes[run_id]

    async def _read(self, run_id: str, history: RunHistory) -> None:
        async with self._turns, aclosing(EventLog(self._bus, run_id).follow(history.newest, until_current=True)) as events:
            count = 0
            async for event in events:
                await history.add(event)
                count += 1
                if count % _BREATH_EVENTS == 0:
                    await asyncio.sleep(0)
                if count % _FORGET_EVENTS == 0:
                    self._forget_some()
        self._forget_some()


def _look_at(run_id: str, reading: asyncio.Task[None]) -> None:
    """Looks at the error of a reading, also of one for which no request waits any more."""
    if not reading.cancelled() and (error := reading.exception()) is not None:
        _log.warning("history_unread", run_id=run_id, error=f"{type(error).__name__}: {error}")
