"""The history of one run: its metrics by step, its evaluations by version, and its newest other events."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gradbus.bus import Event
from gradbus.telemetry import get_logger
from gradbus.trackers.points import STEPS, finite_numbers
from gradbus_gateway.history.happenings import Happening, Happenings
from gradbus_gateway.history.size import Size
from gradbus_gateway.history.table import MOST_COLUMNS, Table

_log = get_logger(__name__)
_MOST_EVENTS: Final = 400
_MOST_SCORERS: Final = 1000


class RunHistory:
    """Takes a run's events in their order. A step that a restarted trainer reports again is left out."""

    def __init__(self, run_id: str, folder: Path) -> None:
        """Older rows lie in files without names in `folder`, which is made when there are any."""
        self._run_id = run_id
        self.steps = Table(folder)
        self.evaluations = Table(folder)
        self.newest = 0
        """Sequence of the newest event."""
        self._events = Happenings(_MOST_EVENTS)
        self._scorers = Happenings(_MOST_SCORERS)
        """Changes of the scorer stay longer than other events: charts mark them."""
        self._has_told = False

    @property
    def size(self) -> Size:
        """What it takes."""
        events = Size(runs=1, memory_bytes=self._events.memory_bytes + self._scorers.memory_bytes)
        return Size.total((self.steps.size, self.evaluations.size, events))

    async def add(self, event: Event) -> None:
        """Takes the next event, or raises DiskError when the folder cannot be written: take it again then."""
        if event.type in STEPS:
            await self._add_row(event)
        if event.type != "metrics":
            (self._scorers if event.type == "scorer" else self._events).add(event)
        self.newest = event.sequence

    def happenings(self, most: int) -> list[Happening]:
        """The newest `most` events that are no metrics, and the changes of the scorer, oldest first."""
        return sorted([*self._scorers.newest(_MOST_SCORERS), *self._events.newest(most)], key=lambda happening: happening.event.sequence)

    async def _add_row(self, event: Event) -> None:
        _, field = STEPS[event.type]
        values = dict(finite_numbers(event.data, ""))
        values.pop("version", None)
        x = event.data.get(field)
        if type(x) is not int or not 0 <= x < 1 << 62:
            return
        values.pop(field, None)
        table = self.steps if event.type == "metrics" else self.evaluations
        if await table.add(x, event.created_unix_ns / 1e9, values) and event.type == "metrics":
            self._events.reported(x)
            self._scorers.reported(x)
        if table.has_left_out and not self._has_told:
            self._has_told = True
            _log.warning("history_columns_left_out", run_id=self._run_id, type=event.type, most=MOST_COLUMNS)
