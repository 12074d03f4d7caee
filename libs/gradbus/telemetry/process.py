"""Metrics of the process itself, by OpenTelemetry's conventions for processes."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gradbus.telemetry.metrics import PROCESS

_STATUS: Final = Path("/proc/self/statm")


def export_process_metrics(ready: Callable[[], bool]) -> None:
    """Exports processor time, memory, uptime and the readiness of the process from now on."""
    started = time.monotonic()  # not when this module was imported: a forked service did not import it
    PROCESS.set("process.cpu.time", lambda: resource.getrusage(resource.RUSAGE_SELF).ru_utime, {"cpu.mode": "user"})
    PROCESS.set("process.cpu.time", lambda: resource.getrusage(resource.RUSAGE_SELF).ru_stime, {"cpu.mode": "system"})
    PROCESS.set("process.memory.usage", _memory)
    PROCESS.set("process.uptime", lambda: time.monotonic() - started)
    PROCESS.set("gradbus.process.ready", lambda: float(ready()))


def _memory() -> float:
    """Bytes of physical memory; without Linux's /proc the peak."""
    if _STATUS.exists():
        return int(_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
