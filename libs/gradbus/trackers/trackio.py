"""Trackio: a run of a project, in its local database."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, Final

from gradbus.errors import TrackerError
from gradbus.trackers.lock import lock_for
from gradbus.trackers.points import EVENT, Point
from gradbus.trackers.sink import TrackedRun, writing_to

PROJECT: Final = "gradbus"
_ELSEWHERE: Final = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class TrackioSink:
    """A point is one row, so that it is there whole or not at all."""

    def __init__(self, target: str, run: TrackedRun) -> None:
        if given := [name for name in _ELSEWHERE if os.environ.get(name)]:
            # What a Space or a server holds is not read back, so that each start would write the whole run again.
            raise TrackerError(
                f"only Trackio's local database is written; unset {' and '.join(given)}, and upload the project by `trackio sync`"
            )
        import trackio  # noqa: PLC0415 - an extra, and slow to load
        from trackio.sqlite_storage import SQLiteStorage  # noqa: PLC0415
        from trackio.utils import TRACKIO_DIR  # noqa: PLC0415

        project = target or PROJECT
        self._lock = lock_for(f"trackio {TRACKIO_DIR.resolve()} {project}", run.run_id)
        rows = SQLiteStorage.get_logs(project, run.title)
        self.written = max((int(row.get(EVENT, 0)) for row in rows), default=0)
        options: Any = {"resume": "allow", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        with redirect_stdout(sys.stderr):  # standard output is the command's
            self._run = trackio.init(project, name=run.title, config=dict(run.spec), **options)

    def write(self, points: Sequence[Point]) -> None:
        """See `Sink.write`."""
        with writing_to("Trackio"):
            for point in points:
                self._run.log(dict(point.values), step=point.step)

    def close(self, state: str) -> None:  # noqa: ARG002 - Trackio shows no state
        """See `Sink.close`."""
        with writing_to("Trackio"), redirect_stdout(sys.stderr):
            self._run.finish()  # type: ignore[no-untyped-call]
        self._lock.close()
