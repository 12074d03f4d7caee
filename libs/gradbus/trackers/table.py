"""A run's history as one table, for a spreadsheet or pandas."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from gradbus.trackers.points import EVENT, Point
from gradbus.trackers.sink import TrackedRun


class CsvSink:
    """The file is written anew when the feed ends, with a column for each name, so that it is there whole or as it was before."""

    written = 0

    def __init__(self, target: str, run: TrackedRun) -> None:  # noqa: ARG002 - the file names the run
        self._path = Path(target).expanduser()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._rows = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with this object; a history may be larger than memory
        self._names: dict[str, None] = {}

    def write(self, points: Sequence[Point]) -> None:
        """See `Sink.write`."""
        for point in points:
            values = {name: value for name, value in point.values.items() if name != EVENT}
            self._names.update(dict.fromkeys(values))
            row = {"event": point.event, "group": point.group, "step": point.step, "unix_seconds": point.unix_seconds, **values}
            self._rows.write(json.dumps(row) + "\n")

    def close(self, state: str) -> None:  # noqa: ARG002 - a table has no state
        """See `Sink.close`."""
        partial = self._path.with_name(f".{self._path.name}.partial")
        self._rows.seek(0)
        with partial.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, ["event", "group", "step", "unix_seconds", *self._names])
            table.writeheader()
            table.writerows(map(json.loads, self._rows))
        os.replace(partial, self._path)
