"""Process 1 of a sandbox whose command serves by its standard input and output until it is ended. Standard library only."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

from gradbus.sandbox.commands.processes import end_all, ended, has_more_files, has_more_memory
from gradbus.sandbox.commands.request import Command
from gradbus.sandbox.commands.restrictions import execute
from gradbus.sandbox.privileges import system_library

_CPU_SECONDS = 3600.0
_LOOK_SECONDS = 0.2


def main() -> None:
    """Of a sandbox that bubblewrap made."""
    serve(system_library(), os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), sys.argv[1])


def serve(libc: ctypes.CDLL, proc: int | None, served: str) -> None:
    """Runs the command until it ends, has too much memory or too many files, or the sandbox is ended; its streams are this process's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = json.loads(served)
    command = Command(tuple(asked["arguments"]), seconds=_CPU_SECONDS, memory_mib=asked["memory_mib"])
    pid = os.fork()
    if pid == 0:
        execute(libc, command, (0, 1, 2), asked["paths"], bound_addresses=proc is None)
    for handle in (0, 1):
        os.close(handle)  # so that the parent sees the end of the command's
    while ended(pid) is None and not has_more_files() and not (proc is not None and has_more_memory(proc, command.memory_mib << 20)):
        time.sleep(_LOOK_SECONDS)
    end_all(pid)


def served_paths(served: str | None) -> list[str]:
    """What the command may read and execute beside the system's programs."""
    return [] if served is None else list(json.loads(served)["paths"])
