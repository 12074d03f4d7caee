"""The histories of the runs that were looked at last."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass, field
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
    size: Size = field(default_factory=Size)
    """Of the history, when it was last measured."""
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
        self.size = Size()
        """Of all histories, each as it was when it was last measured."""
        self._turns = asyncio.Semaphore(_READERS)

    async def of(self, run_id: str) -> tuple[RunHistory, bool]:
        """A run's history as far as it is read after two seconds, and whether that is all.

        Raises an error of NATS, and DiskError when the folder cannot be written.
        """
        entry = self._entry(run_id)
        reading = entry.reading
        if reading is None or reading.done():
            reading = entry.reading = asyncio.create_task(self._read(run_id, entry), name=f"history of {run_id}")
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
        self.size = Size()

    def _entry(self, run_id: str) -> _Entry:
        if run_id not in self._entries:
            self._entries[run_id] = _Entry(RunHistory(run_id, self._folder))
            self._measure(self._entries[run_id])
        self._entries.move_to_end(run_id)
        return self._entries[run_id]

    def _measure(self, entry: _Entry) -> None:
        """Counts what was added to this history. The others are as they were measured, or are being read, and measured then."""
        before, entry.size = entry.size, entry.history.size
        self.size = self.size.changed(before, entry.size)

    def _forget_some(self) -> None:
        """Forgets the histories that were asked for longest ago while all are too many or too large, but none that is being read."""
        for run_id, entry in list(self._entries.items()):
            if self.size.fits(_MOST):
                return
            if not entry.is_read:
                del self._entries[run_id]
                self.size = self.size.changed(entry.size, Size())

    async def _read(self, run_id: str, entry: _Entry) -> None:
        try:
            await self._add_events(run_id, entry)
        finally:
            self._measure(entry)
        self._forget_some()

    async def _add_events(self, run_id: str, entry: _Entry) -> None:
        history = entry.history
        async with self._turns, aclosing(EventLog(self._bus, run_id).follow(history.newest, until_current=True)) as events:
            count = 0
            async for event in events:
                await history.add(event)
                count += 1
                if count % _BREATH_EVENTS == 0:
                    await asyncio.sleep(0)
                if count % _FORGET_EVENTS == 0:
                    self._measure(entry)
                    self._forget_some()


def _look_at(run_id: str, reading: asyncio.Task[None]) -> None:
    """Looks at the error of a reading, also of one for which no request waits any more."""
    if not reading.cancelled() and (error := reading.exception()) is not None:
        _log.warning("history_unread", run_id=run_id, error=f"{type(error).__name__}: {error}")
