"""Why a server ended: from the last lines of its log, and from what the kernel counts in its cgroup.

The exit status says little. A server whose child fails kills all of its own processes, itself too, and one that the kernel killed for
memory ends with the same status.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_MEMORY: Final = re.compile(r"out of memory|OutOfMemory|MemoryError|not enough memory|Not enough memory|Cannot allocate memory")
_PREFIX: Final = re.compile(r"^(?:\[[^\]]*\]:?\s*)+")
"""Time and rank before a line of the log, e.g. `[2026-01-31 12:00:00 TP0]` or `[rank0]:`."""
_ERROR: Final = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|OutOfMemory)(?::|$)")
_TRACEBACK: Final = "Traceback (most recent call last)"
_CONSEQUENCE: Final = re.compile(r"sigquit|SIGQUIT|SIGTERM|kill_process_tree|^Killed$|is dead\. Please check|leaked .* objects")
"""What processes of a server say about the failure of another one."""
_LAST_LINES: Final = 5
_MOST_CHARACTERS: Final = 400
_CGROUPS: Final = Path("/proc/self/cgroup")
_MOUNT: Final = Path("/sys/fs/cgroup")
_EVENT_FILES: Final = {"": "memory.events", "memory": "memory.oom_control"}
"""Controller to the file that counts kills: cgroup v2 has one hierarchy without a name, v1 one a controller."""


def out_of_memory(text: str) -> bool:
    """Whether an error or an answer reports that memory ran out."""
    return _MEMORY.search(text) is not None


def error_line(log: str) -> str:
    """The line of a log's end that names the error; empty for an empty log.

    It is the first line of the first exception, since later ones follow from it; without an exception, the last line that is no
    consequence of another process's end.
    """
    lines = _lines(log)
    errors = [line for line in lines if _ERROR.match(line)]
    others = [line for line in lines if not _CONSEQUENCE.search(line) and _TRACEBACK not in line]
    return (errors[:1] or others[-1:] or lines[-1:] or [""])[0][:_MOST_CHARACTERS]


def log_lacks_memory(log: str) -> bool:
    """Whether the error or one of the last lines of the log reports that memory ran out."""
    return any(map(out_of_memory, [error_line(log), *_lines(log)[-_LAST_LINES:]]))


def kernel_kills(cgroups: Path = _CGROUPS, mount: Path = _MOUNT) -> int:
    """Processes that the kernel has killed for memory in this process's cgroup; 0 where it does not say."""
    try:
        memberships = [line.split(":", 2) for line in cgroups.read_text().splitlines()]
    except OSError:
        return 0
    return max((_kills(mount, controllers, path) for _, controllers, path in memberships if controllers in _EVENT_FILES), default=0)


def _kills(mount: Path, controller: str, path: str) -> int:
    for folder in (mount / controller / path.lstrip("/"), mount / controller):  # in a container the path may be the host's
        try:
            counts = dict(line.split() for line in (folder / _EVENT_FILES[controller]).read_text().splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def _lines(log: str) -> list[str]:
    """The lines without time and rank. Those of a stack are indented, and left out."""
    stripped = [_PREFIX.sub("", line).rstrip() for line in log.splitlines()]
    return [line for line in stripped if line and not line[0].isspace()]
