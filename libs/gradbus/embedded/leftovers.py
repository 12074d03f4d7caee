"""Processes of a stack whose supervisor was killed: they end with it, a moment later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_LOOKS = 60
_EVERY_SECONDS = 0.05


async def until_gone(last: Mapping[str, object]) -> None:
    """Waits, three seconds at most, until no process in `last` (the content of stack.json) runs."""
    processes = last.get("processes")
    entries = processes.values() if isinstance(processes, dict) else ()
    pids = [entry["pid"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("pid"), int)]
    for _ in range(_LOOKS):
        pids = [pid for pid in pids if is_running(pid)]
        if not pids:
            return
        await asyncio.sleep(_EVERY_SECONDS)
    # After a reboot these may be anybody's, so they are left alone; a port still held shows up by itself.
    _log.warning("pids_of_last_stack_in_use", pids=pids)


def is_running(pid: int) -> bool:
    """Whether `pid` runs; False for one that ended and was not reaped, and on systems without /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
