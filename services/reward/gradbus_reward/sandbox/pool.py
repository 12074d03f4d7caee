"""The processes of a grader. A batch in which one sample hangs still gives the others their rewards."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gradbus_reward.sandbox.process import GraderProcess, GraderStoppedError, Row

BATCH = 32
"""Rows of a message at first: small enough to grade again one by one."""
MAX_BATCH = 256
"""Rows of a message to a quick grader, so that the pipe costs little."""
_QUICK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Settings of the processes of one grader."""

    processes: int = 2
    allow_unisolated_network: bool = False
    """Run graders even where their network cannot be taken away, for operators who trust all users."""


@dataclass(slots=True)
class GradeCall:
    """The rows of one call: those left to grade, the results, and the rows that stopped a process."""

    rows: Sequence[Row]
    suspects: frozenset[int]
    """Rows that stopped a process in an earlier call."""
    results: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    stopped: dict[int, str] = field(default_factory=dict)
    """Reasons, by row."""
    one_by_one: bool = False
    _left: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        # Suspects go last, so that they take no time from the others.
        self._left.extend(sorted(range(len(self.rows)), key=lambda n: n in self.suspects))

    def take(self, count: int = BATCH) -> list[int]:
        """The rows of the next message, up to `count`."""
        taken: list[int] = []
        while self._left and len(taken) < count:
            is_single = self.one_by_one or self._left[0] in self.suspects
            if is_single and taken:
                break
            taken.append(self._left.popleft())
            if is_single:
                break
        return taken

    def stop(self, taken: Sequence[int], reason: str) -> None:
        """Records that a process stopped while it graded `taken`. Several rows are graded again one by one, to find the cause."""
        if len(taken) == 1:
            self.stopped[taken[0]] = reason
            return
        self.one_by_one = True
        self._left.extendleft(reversed(taken))


class GraderPool:
    """Up to `settings.processes` processes with the same sources, started at first use."""

    def __init__(self, sources: Mapping[str, str], settings: PoolSettings) -> None:
        self._sources = sources
        self._settings = settings
        self._closed = False
        self._batch = BATCH
        self._free: asyncio.Queue[GraderProcess | None] = asyncio.Queue()
        for _ in range(settings.processes):
            self._free.put_nowait(None)

    async def grade(self, rows: Sequence[Row], suspects: frozenset[int], seconds: float) -> GradeCall:
        """Grades `rows`. When the time is up, rows in neither `results` nor `stopped` were not reached.

        A message may take a quarter of `seconds`: a sample that hangs costs one quarter to notice and one to find.
        Raises GraderSourceError for a source that does not load and ScorerError if it cannot be confined.
        """
        call = GradeCall(rows, suspects)
        workers = min(self._settings.processes, -(-len(rows) // self._batch))
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(call, seconds / 4))
        except TimeoutError:
            pass  # the caller sees which rows were not reached
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return call

    async def close(self) -> None:
        """Stops the processes; a busy process stops after its message."""
        self._closed = True
        while not self._free.empty():
            process = self._free.get_nowait()
            if process is not None:
                await process.stop()

    async def _work(self, call: GradeCall, seconds: float) -> None:
        while True:
            async with self._process() as process:
                taken = call.take(self._batch)
                if not taken:
                    return
                start = time.monotonic()
                try:
                    call.results.update(zip(taken, await process.grade([call.rows[n] for n in taken], seconds), strict=True))
                    self._batch = min(MAX_BATCH, 2 * self._batch) if time.monotonic() - start < _QUICK_SECONDS else BATCH
                except GraderStoppedError as error:
                    call.stop(taken, str(error))

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[GraderProcess]:
        process = await self._free.get()
        try:
            if process is None:
                process = await GraderProcess.start(self._sources, allow_network=self._settings.allow_unisolated_network)
            yield process
        finally:
            keep = process is not None and process.alive and not self._closed
            self._free.put_nowait(process if keep else None)
            if process is not None and not keep:
                await process.stop()
