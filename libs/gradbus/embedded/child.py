"""Becomes a program that ends with its supervisor: `child.py SUPERVISOR_PID CORES COMMAND...`.

Runs as a script between fork and exec (`python -I -S child.py ...`), for what it does is not safe in a forked copy of a
process with threads. It imports nothing of Gradbus, so it costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(supervisor: int, cores: str, command: list[str]) -> None:
    """Sets what must hold for the program's whole life, then becomes it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if cores:
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    if os.getppid() != supervisor:
        sys.exit("the supervisor is gone")  # it died before the line above could tie us to it
    os.execvp(command[0], command)  # noqa: S606 - the supervisor's own command


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
