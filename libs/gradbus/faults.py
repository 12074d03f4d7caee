"""Named points at which a test may have a process die, as by SIGKILL from outside."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_name, _, _count = os.environ.get("GRADBUS_FAULT_POINT", "").partition(":")
_left = int(_count or 1)


def point(name: str) -> None:
    """Dies here if `GRADBUS_FAULT_POINT` is `name`, or `name:count` for the count-th pass; does nothing otherwise.

    A marker in `GRADBUS_FAULT_DIR` lets the process that is started again go on.
    """
    if name == _name:
        _pass()


def _pass() -> None:
    global _left  # noqa: PLW0603 - a count of the process
    _left -= 1
    if _left != 0:
        return
    try:
        (Path(os.environ["GRADBUS_FAULT_DIR"]) / _name).touch(exist_ok=False)
    except FileExistsError:
        return
    _log.warning("fault_point", name=_name)
    os.kill(os.getpid(), signal.SIGKILL)
