"""Records when a run's groups are written and admitted, from outside the services."""

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
    """When the rollout worker announced the group in the buffer."""
    admitted: dict[int, float] = field(default_factory=dict)
    """When the group was in the log, by the buffer's clock, to the millisecond."""
    record_bytes: int = 0

    def latencies(self, first: int) -> list[float]:
        """Sorted seconds from written to admitted, for groups from index `first` on."""
        both = self.written.keys() & self.admitted.keys()
        return sorted(max(0.0, self.admitted[index] - self.written[index]) for index in both if index >= first)

    def rate(self, share: tuple[float, float] = (0.2, 0.95)) -> float:
        """Groups per second between two quantiles of the admissions, which leaves out start and end."""
        moments = sorted(self.admitted.values())
        low, high = (int(part * (len(moments) - 1)) for part in share)
        return (high - low) / max(1e-9, moments[high] - moments[low])


@asynccontextmanager
async def watched(bus: Bus, buffer: Any, run_id: str) -> AsyncIterator[Admissions]:
    """Records admissions into the result inside the block."""
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
