"""Ties a program's life to its supervisor and runs it: `child.py SUPERVISOR_PID COMMAND...`.

A script between fork and exec (`python -I -S child.py ...`), because these calls are not safe in a forked copy of a
process with threads. It imports nothing of Gradbus, so it costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(supervisor: int, command: list[str]) -> None:
    """Sets the death signal, then replaces this process with the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        sys.exit("the supervisor is gone")  # it ended before the death signal was set
    os.execvp(command[0], command)  # noqa: S606 - the supervisor's own command


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
