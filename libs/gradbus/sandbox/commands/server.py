"""Process 1 of a sandbox whose command serves by its standard input and output until it is ended. Standard library only."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

from gradbus.sandbox.commands.loopback import PORT, give_listener
from gradbus.sandbox.commands.processes import end_all, ended, exit_status, has_more_files, has_more_memory
from gradbus.sandbox.commands.request import Command
from gradbus.sandbox.commands.restrictions import Access, execute
from gradbus.sandbox.privileges import system_library

_CPU_SECONDS = 3600.0
_LOOK_SECONDS = 0.2


def main() -> None:
    """Of a sandbox that bubblewrap made."""
    sys.exit(serve(system_library(), os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), read_served(int(sys.argv[1]))))


def serve(libc: ctypes.CDLL, proc: int | None, served: str) -> int:
    """Runs the command until it ends, has too much memory or too many files, or the sandbox is ended; its streams are this process's.

    Returns its exit status, as a shell has it: 128 and the signal that ended it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked: dict[str, Any] = json.loads(served)
    command = Command(tuple(asked["arguments"]), seconds=_CPU_SECONDS, memory_mib=asked["memory_mib"])
    if has_listener(served):
        give_listener(asked["listener"])
    access = Access(tuple(asked["paths"]), asked["environment"], PORT if has_listener(served) else None)
    pid = os.fork()
    if pid == 0:
        execute(libc, command, (0, 1, 2), access, bound_addresses=proc is None)
    for handle in (0, 1):
        os.close(handle)  # so that the parent sees the end of the command's
    while (status := ended(pid)) is None and not has_more_files() and not _has_more_memory(proc, command):
        time.sleep(_LOOK_SECONDS)
    last = end_all(pid)
    return exit_status((last or 0) if status is None else status)


def read_served(document: int, *, keep: bool = False) -> str:
    """The JSON object of a `ServedCommand` from the file of this handle, which is closed, so that the command does not have it, unless it
    is kept for another reader."""
    served = os.pread(document, os.fstat(document).st_size, 0).decode()
    if not keep:
        os.close(document)
    return served


def has_listener(served: str | None) -> bool:
    """Whether its command reaches the service on its loopback."""
    return served is not None and json.loads(served)["listener"] is not None


def _has_more_memory(proc: int | None, command: Command) -> bool:
    return proc is not None and has_more_memory(proc, command.memory_mib << 20)


def served_paths(served: str | None) -> list[str]:
    """What the command may read and execute beside the system's programs."""
    return [] if served is None else list(json.loads(served)["paths"])
