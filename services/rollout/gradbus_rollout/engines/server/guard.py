"""Runs a server that ends with its worker: `guard.py WORKER_PID COMMAND...`, as the leader of a session of its own.

A server starts further processes, which may not notice that their parent is gone, least of all while they start. So when the
worker or the server dies, the guard ends the whole process group. It imports nothing of Gradbus and costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def main(worker: int, command: list[str]) -> int:
    """The server's exit status, 128 + signal if it was killed."""
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # the worker's limit is for its own memory, and a GPU's driver reserves more
    if os.getppid() != worker:
        sys.exit("the worker is gone")  # it died before prctl above took effect
    status = subprocess.call(command)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
