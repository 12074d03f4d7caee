"""A run's history as one table, for a spreadsheet or pandas: comma-separated values, or JSON Lines."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from gradbus.trackers.points import EVENT, Point
from gradbus.trackers.sink import TrackedRun


class _Rows:
    """The rows of a file that is written anew when the feed ends, so that it is there whole or as it was before."""

    def __init__(self, target: str) -> None:
        self._path = Path(target).expanduser()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._rows = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with this object; a history may be larger than memory
        self.names: dict[str, None] = {"event": None, "group": None, "step": None, "unix_seconds": None}

    def add(self, points: Sequence[Point]) -> None:
        for point in points:
            values = {name: value for name, value in point.values.items() if name != EVENT}
            row = {"event": point.event, "group": point.group, "step": point.step, "unix_seconds": point.unix_seconds, **values}
            self.names.update(dict.fromkeys(row))
            self._rows.write(json.dumps(row) + "\n")

    def store(self, write: Callable[[IO[str], IO[str]], object]) -> None:
        """`write` gets the rows, as JSON Lines, and the file."""
        partial = self._path.with_name(f".{self._path.name}.partial")
        self._rows.seek(0)
        with partial.open("w", newline="", encoding="utf-8") as file:
            write(self._rows, file)
        os.replace(partial, self._path)


class CsvSink:
    """A table with a column for each name."""

    written = 0

    def __init__(self, target: str, run: TrackedRun) -> None:  # noqa: ARG002 - the file names the run
        self._rows = _Rows(target)

    def write(self, points: Sequence[Point]) -> None:
        """See `Sink.write`."""
        self._rows.add(points)

    def close(self, state: str) -> None:  # noqa: ARG002 - a table has no state
        """See `Sink.close`."""
        self._rows.store(self._write)

    def _write(self, rows: IO[str], file: IO[str]) -> None:
        table = csv.DictWriter(file, list(self._rows.names))
        table.writeheader()
        table.writerows(map(json.loads, rows))


class JsonLinesSink:
    """An object a line."""

    written = 0

    def __init__(self, target: str, run: TrackedRun) -> None:  # noqa: ARG002 - the file names the run
        self._rows = _Rows(target)

    def write(self, points: Sequence[Point]) -> None:
        """See `Sink.write`."""
        self._rows.add(points)

    def close(self, state: str) -> None:  # noqa: ARG002 - lines have no state
        """See `Sink.close`."""
        self._rows.store(shutil.copyfileobj)
