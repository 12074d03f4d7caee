"""Threads that hash, copy and code the bytes of weights. No torch here, which a worker beside a server does not have."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

MOST_THREADS: Final = 8
"""Their SHA-256 is then faster than what brings the bytes; more would only take cores from others."""
SMALL_BYTES: Final = 1 << 16
"""To hand fewer bytes to a thread takes as long as to work on them."""
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_Result = TypeVar("_Result")


def usable_cores(quota: Path = _QUOTA) -> int:
    """Cores that this process may use: those of its affinity, and no more than the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        most, period = quota.read_text().split()
        return max(1, min(cores, int(most) // int(period)))
    except (OSError, ValueError):  # no such groups here, or "max": no quota
        return cores


@cache
def thread_count() -> int:
    """One for each usable core, and MOST_THREADS at most."""
    return min(MOST_THREADS, usable_cores())


@cache
def weight_threads() -> ThreadPoolExecutor:
    """The process's threads for this work, `thread_count` of them. What they are given must not wait for other work of theirs."""
    return ThreadPoolExecutor(thread_count(), "weights")


def submit(work: Callable[[], _Result], size: int) -> Future[_Result]:
    """Has `work` on `size` bytes done by a thread, or does it here if they are few."""
    if size > SMALL_BYTES:
        return weight_threads().submit(work)
    done: Future[_Result] = Future()
    try:
        done.set_result(work())
    except Exception as error:  # noqa: BLE001 - the future's, as a thread's would be
        done.set_exception(error)
    return done
