"""Crash points: named places at which a test lets a process kill itself by SIGKILL."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_name, _, _counts = os.environ.get("GRADBUS_CRASH_POINT", "").partition(":")
_deadly = frozenset(int(count) for count in (_counts or "1").split(","))
_passes = 0


def reached(name: str) -> None:
    """Kills the process if `GRADBUS_CRASH_POINT` is `name`; with `name:2,5`, at the second and fifth pass. Otherwise does nothing.

    A marker file `name-<pass>` in `GRADBUS_CRASH_DIR` keeps the restarted process from dying again.
    """
    if name == _name:
        _pass()


def _pass() -> None:
    global _passes  # noqa: PLW0603 - a count of the process
    _passes += 1
    if _passes not in _deadly:
        return
    try:
        (Path(os.environ["GRADBUS_CRASH_DIR"]) / f"{_name}-{_passes}").touch(exist_ok=False)
    except FileExistsError:
        return
    _log.warning("crash_point", name=_name, passes=_passes)
    os.kill(os.getpid(), signal.SIGKILL)
