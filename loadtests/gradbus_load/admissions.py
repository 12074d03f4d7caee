"""Watches a run's groups on their way into the log, from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gradbus.aio.tasks import background
from gradbus.bus import Bus, subjects
from gradbus.experience import ExperienceLog
from gradbus.v1.task_pb2 import TASK_KIND_TRAIN, GroupsSampled

_BLOCK_SECONDS = 1.0


@dataclass(slots=True)
class Admissions:
    """Unix seconds by group index."""

    written: dict[int, float] = field(default_factory=dict)
    """When the rollout had put the group's last sample into the buffer, and said so."""
    admitted: dict[int, float] = field(default_factory=dict)
    """When the log had the group: the buffer's clock, to the millisecond."""
    record_bytes: int = 0

    def latencies(self, first: int) -> list[float]:
        """Seconds from written to admitted, of the groups from `first` on, sorted."""
        both = self.written.keys() & self.admitted.keys()
        return sorted(max(0.0, self.admitted[index] - self.written[index]) for index in both if index >= first)

    def rate(self, share: tuple[float, float] = (0.2, 0.95)) -> float:
        """Groups a second between two points of all that were admitted: the beginning and the end are not what is asked."""
        moments = sorted(self.admitted.values())
        low, high = (int(part * (len(moments) - 1)) for part in share)
        return (high - low) / max(1e-9, moments[high] - moments[low])


@asynccontextmanager
async def watched(bus: Bus, buffer: Any, run_id: str) -> AsyncIterator[Admissions]:
    """Fills the result inside the block."""
    seen = Admissions()

    async def sampled(payload: bytes) -> None:
        now, note = time.time(), GroupsSampled.FromString(payload)
        if note.kind == TASK_KIND_TRAIN:
            for index in note.indexes:
                seen.written.setdefault(index, now)

    async with bus.subscribed(subjects.groups(run_id), sampled), background(_read(ExperienceLog(buffer, run_id), seen), "admissions"):
        yield seen


async def _read(log: ExperienceLog, seen: Admissions) -> None:
    after = "0-0"
    while True:
        for entry in await log.read(after, wait_seconds=_BLOCK_SECONDS):
            after = entry.stream_id
            seen.admitted.setdefault(entry.index, int(after.partition("-")[0]) / 1000)
            seen.record_bytes += len(entry.record)
        await asyncio.sleep(0)
