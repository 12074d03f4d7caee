"""Named points at which a test may have a process die, as by SIGKILL from outside."""

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
    """Dies here if `GRADBUS_CRASH_POINT` is `name`, or at the passes that `name:2,5` counts; does nothing otherwise.

    A marker `name-<pass>` in `GRADBUS_CRASH_DIR` lets the process that is started again go on.
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
    _log.warning("fault_point", name=_name, passes=_passes)
    os.kill(os.getpid(), signal.SIGKILL)
