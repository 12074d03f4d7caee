"""Seconds of work on a device: by its own clock on a GPU, whose work goes on after a call has returned."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import torch

_WARM: Final = 2


def seconds(work: Callable[[], object], device: str, repeats: int = 7) -> float:
    """Median seconds of one call, after two that are not counted."""
    for _ in range(_WARM):
        work()
    return statistics.median(_once(work, device) for _ in range(repeats))


def wall(work: Callable[[], object], device: str) -> float:
    """Seconds of one call and all the work that it has begun, by the host's clock."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: str) -> None:
    """Waits for the work on a GPU."""
    if device != "cpu":
        torch.cuda.synchronize()


def _once(work: Callable[[], object], device: str) -> float:
    if device == "cpu":
        return wall(work, device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
