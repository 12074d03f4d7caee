"""Trackio: a run of a project, in its local database or where its variables say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, Final

from gradbus.trackers.points import EVENT, Point
from gradbus.trackers.sink import TrackedRun

PROJECT: Final = "gradbus"


class TrackioSink:
    """A point is one row, so that it is there whole or not at all."""

    def __init__(self, target: str, run: TrackedRun) -> None:
        import trackio  # noqa: PLC0415 - an extra, and slow to load
        from trackio.sqlite_storage import SQLiteStorage  # noqa: PLC0415

        project = target or PROJECT
        rows = SQLiteStorage.get_logs(project, run.title)
        self.written = max((int(row.get(EVENT, 0)) for row in rows), default=0)
        options: Any = {"resume": "allow", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        with redirect_stdout(sys.stderr):  # standard output is the command's
            self._run = trackio.init(project, name=run.title, config=dict(run.spec), **options)

    def write(self, points: Sequence[Point]) -> None:
        """See `Sink.write`."""
        for point in points:
            self._run.log(dict(point.values), step=point.step)

    def close(self, state: str) -> None:  # noqa: ARG002 - Trackio shows no state
        """See `Sink.close`."""
        with redirect_stdout(sys.stderr):
            self._run.finish()  # type: ignore[no-untyped-call]
