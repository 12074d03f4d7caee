"""Trackio: a run of a project, in its local database or where its variables say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trackio
from trackio.sqlite_storage import SQLiteStorage

from gradbus.trackers.points import EVENT, Point
from gradbus.trackers.sink import TrackedRun

PROJECT: Final = "gradbus"


class TrackioSink:
    """A point is one row, so that it is there whole or not at all."""

    def __init__(self, target: str, run: TrackedRun) -> None:
        project = target or PROJECT
        rows = SQLiteStorage.get_logs(project, run.title)
        self.written = max((int(row.get(EVENT, 0)) for row in rows), default=0)
        self._run = trackio.init(
            project, name=run.title, config=dict(run.spec), resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )

    def write(self, points: Sequence[Point]) -> None:
        """See `Sink.write`."""
        for point in points:
            self._run.log(dict(point.values), step=point.step)

    def close(self, state: str) -> None:  # noqa: ARG002 - Trackio shows no state
        """See `Sink.close`."""
        self._run.finish()
