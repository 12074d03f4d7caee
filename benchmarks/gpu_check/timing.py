"""Seconds of work on a device: by its own clock on a GPU, whose work goes on after a call has returned."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import torch

_WARM: Final = 2
_AHEAD: Final = 4_000_000
"""Cycles of a GPU: about two milliseconds."""


def seconds(work: Callable[[], object], device: str, repeats: int = 7, queued: bool = False) -> float:
    """Median seconds of one call, after two that are not counted.

    `queued`: a GPU waits before the work until the host has issued it, so that it is not the host's launches that are measured.
    """
    for _ in range(_WARM):
        work()
    return statistics.median(_once(work, device, queued) for _ in range(repeats))


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


def _once(work: Callable[[], object], device: str, queued: bool) -> float:
    if device == "cpu":
        return wall(work, device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if queued:
        torch.cuda._sleep(_AHEAD)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
