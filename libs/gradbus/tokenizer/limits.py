"""Limits of a tokenizer's process: memory, CPU, priority and files."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from gradbus.niceness import USERS_NICENESS

MEMORY_BYTES: Final = 1 << 30
"""The largest tokenizers in use, 256,000 tokens with 500,000 merges, need 640 MB while they load."""
_OPEN_FILES: Final = 64


def limit_process() -> None:
    """Limits this process for the rest of its life; above MEMORY_BYTES an allocation fails."""
    os.nice(USERS_NICENESS)
    for kind, value in [
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ]:
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))
    with contextlib.suppress(OSError):
        # If the machine runs out of memory, the kernel ends this process before any service.
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_cpu(seconds: float) -> None:
    """Lets this process compute for `seconds` more, rounded up; then the kernel ends it by SIGXCPU."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
