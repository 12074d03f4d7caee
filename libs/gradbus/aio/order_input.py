"""The order of a process that another one started to do it, as `gradbus.aio.ordered_process` does."""

from __future__ import annotations

import os
import sys
import threading


def read_order() -> str:
    """The first line of standard input. Its end, which tells that the other process is gone, ends this one from now on."""
    order = sys.stdin.readline()
    threading.Thread(target=_end_with_input, daemon=True).start()
    return order


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)
