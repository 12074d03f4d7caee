"""The histories of the runs that were looked at last."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus import Bus, EventLog
from gradbus.telemetry import get_logger
from gradbus_gateway.history.run_history import RunHistory

_log = get_logger(__name__)
_MOST_RUNS: Final = 64
_MOST_BYTES: Final = 2 << 30
"""Of the files of all histories."""
_READERS: Final = 2
"""Histories that are read at a time."""
_WAIT_SECONDS: Final = 2.0
"""How long a request waits for what is still unread."""
_BREATH_EVENTS: Final = 50
"""So many events are read before other requests have their turn."""


@dataclass(slots=True)
class _Entry:
    history: RunHistory
    reading: asyncio.Task[None] | None = None


class Histories:
    """Reads a run's events once, whoever asks, and those that came since whenever somebody asks again."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        """`folder` is for files without names, of 8 bytes a number."""
        self._bus = bus
        self._folder = folder
        self._entries = OrderedDict[str, _Entry]()
        self._turns = asyncio.Semaphore(_READERS)

    async def of(self, run_id: str) -> tuple[RunHistory, bool]:
        """A run's history as far as it is read after two seconds, and whether that is all.

        Raises an error of NATS, and OSError when the disk is full.
        """
        entry = self._entry(run_id)
        if entry.reading is None or entry.reading.done():
            entry.reading = asyncio.create_task(self._read(run_id, entry.history), name=f"history of {run_id}")
            entry.reading.add_done_callback(_look_at)
        reading = entry.reading
        await asyncio.wait({reading}, timeout=_WAIT_SECONDS)
        if reading.done() and not reading.cancelled():
            reading.result()
            self._forget_some(run_id)
            return entry.history, True
        return entry.history, False

    async def close(self) -> None:
        """Ends what is being read."""
        for entry in self._entries.values():
            if entry.reading is not None:
                await cancel_and_wait(entry.reading)
        self._entries.clear()

    def _entry(self, run_id: str) -> _Entry:
        entry = self._entries.setdefault(run_id, _Entry(RunHistory(self._folder)))
        self._entries.move_to_end(run_id)
        return entry

    def _forget_some(self, run_id: str) -> None:
        """Forgets the histories that were asked for longest ago, if they are too many or too large, but not that of `run_id`."""
        while len(self._entries) > _MOST_RUNS or sum(entry.history.size_bytes for entry in self._entries.values()) > _MOST_BYTES:
            oldest = next(iter(self._entries))
            if oldest == run_id:
                return
            entry = self._entries.pop(oldest)
            if entry.reading is not None:
                entry.reading.cancel()

    async def _read(self, run_id: str, history: RunHistory) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        async with self._turns, aclosing(EventLog(self._bus, run_id).follow(history.newest, until_current=True)) as events:
            count = 0
            async for event in events:
                history.add(event)
                count += 1
                if count % _BREATH_EVENTS == 0:
                    await asyncio.sleep(0)


def _look_at(reading: asyncio.Task[None]) -> None:
    """Looks at the error of a reading, also of one for which no request waits any more."""
    if not reading.cancelled() and (error := reading.exception()) is not None:
        _log.warning("history_unread", error=f"{type(error).__name__}: {error}")
