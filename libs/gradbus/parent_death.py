"""The parent-death signal of Linux, by which the kernel ends a process whose parent has ended. Elsewhere nothing happens."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def signal_at_parent_death(number: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel for the signal. A parent that has ended before sends none: the caller looks."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def die_with(parent: int) -> None:
    """Ends this process when the process `parent`, which started it, ends."""
    signal_at_parent_death()
    if os.getppid() != parent:
        os._exit(1)  # it ended before the signal was asked for
