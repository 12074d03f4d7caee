"""The history of one run: its metrics by step, its evaluations by version, and its newest other events."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.bus import Event
from gradbus.trackers.points import finite_numbers
from gradbus_gateway.history.table import Table

_TABLES: Final = {"metrics": "step", "evaluation": "version"}
"""Type of event to the field that is the x of its row; every field of the data that is a number is a column."""
_MOST_EVENTS: Final = 400
_MOST_SCORERS: Final = 1000


@dataclass(slots=True)
class Happening:
    """An event that is no metrics, with the first step that ended after it, once there is one."""

    event: Event
    step: int | None = None


class RunHistory:
    """Takes a run's events in their order. A step that a restarted trainer reports again is left out."""

    def __init__(self, folder: Path) -> None:
        """Older rows lie in files without names in `folder`."""
        self.steps = Table(folder)
        self.evaluations = Table(folder)
        self.newest = 0
        """Sequence of the newest event."""
        self._events: deque[Happening] = deque(maxlen=_MOST_EVENTS)
        self._scorers: deque[Happening] = deque(maxlen=_MOST_SCORERS)
        """Changes of the scorer stay longer than other events: charts mark them."""
        self._without_step: deque[Happening] = deque(maxlen=_MOST_EVENTS + _MOST_SCORERS)

    @property
    def size_bytes(self) -> int:
        """Of its files."""
        return self.steps.size_bytes + self.evaluations.size_bytes

    def add(self, event: Event) -> None:
        """Takes the next event. Raises OSError when the disk is full."""
        if event.type in _TABLES:
            self._add_row(event)
        if event.type != "metrics":
            happening = Happening(event)
            (self._scorers if event.type == "scorer" else self._events).append(happening)
            self._without_step.append(happening)
        self.newest = event.sequence

    def happenings(self, most: int) -> list[Happening]:
        """The newest `most` events that are no metrics, and the changes of the scorer, oldest first."""
        events = list(self._events)[-most:] if most else []
        return sorted([*self._scorers, *events], key=lambda happening: happening.event.sequence)

    def _add_row(self, event: Event) -> None:
        field = _TABLES[event.type]
        values = dict(finite_numbers(event.data, ""))
        values.pop("version", None)
        x = event.data.get(field)
        if type(x) is not int or not 0 <= x < 1 << 62:
            return
        values.pop(field, None)
        table = self.steps if event.type == "metrics" else self.evaluations
        if table.add(x, event.created_unix_ns / 1e9, values) and event.type == "metrics":
            while self._without_step and self._without_step[0].event.created_unix_ns <= event.created_unix_ns:
                self._without_step.popleft().step = x
