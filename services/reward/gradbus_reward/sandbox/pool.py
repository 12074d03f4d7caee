"""The processes of one run's grader. A batch in which one sample hangs still gives the others their rewards."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from gradbus.sandbox.budget import ProcessBudget
from gradbus.sandbox.process import ChildProgram, ProcessStoppedError, SourceError
from gradbus_reward.sandbox.process import PYTHON, GraderProcess, Row

_log = structlog.get_logger(__name__)

BATCH = 32
"""Rows of a message at first: few enough to be shared among the processes."""
MAX_BATCH = 256
"""Rows of a message to a quick grader, so that the pipe costs little."""
_BATCH_CHARACTERS = 1 << 20
"""Of the rows of a message, so that to write one holds up no other run; a row that is longer goes alone."""
_QUICK_SECONDS = 0.05
_HOPELESS = 2
"""Rows that stop a process, in a call without a result or before the grader's first result, after which no further row is tried."""
_FAULT_SECONDS = 15.0
"""How long a source that did not load is not loaded again: a little longer than the run takes to fail for it."""
_USELESS_SECONDS = 4.0
"""How long a grader that has no result yet and stopped on its first samples is not tried again. Of the six failures that end a run three
are then real tries: few enough for the run to end soon, and more than one for an honest grader on a machine that is busy for a moment."""


_VAIN_CALLS = 6
"""Calls in a row, each with samples that were not tried before, in which a grader only stopped: then it counts as one without results. A
sample that is tried again proves nothing, and the samples of one call may have one row."""


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
    at_once: bool = False
    """Whether every result is sent at once, so that the row that stops a process is known."""
    results: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    stopped: dict[int, str] = field(default_factory=dict)
    """Reasons, by row."""
    stops: list[str] = field(default_factory=list)
    """Why processes stopped, also where the row is not known."""
    _left: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        # Suspects go last, so that they take no time from the others.
        self._left.extend(sorted(range(len(self.rows)), key=lambda n: n in self.suspects))

    @property
    def has_left(self) -> bool:
        """Whether rows are left to grade."""
        return bool(self._left)

    def take(self, count: int = BATCH) -> deque[int]:
        """The rows of the next message, up to `count` and `_BATCH_CHARACTERS`; a suspect goes alone."""
        taken: deque[int] = deque()
        characters = 0
        while self._left and len(taken) < count and characters < _BATCH_CHARACTERS:
            is_suspect = self._left[0] in self.suspects
            if is_suspect and taken:
                break
            taken.append(self._left.popleft())
            characters += sum(map(len, self.rows[taken[-1]]))
            if is_suspect:
                break
        return taken

    def stop(self, taken: deque[int], reason: str) -> None:
        """Records that a process stopped before it sent results for `taken`. If any of several may be the cause, all are graded again."""
        self.stops.append(reason)
        if self.at_once or len(taken) == 1:
            self.stopped[taken.popleft()] = reason
        self.at_once = True
        self._left.extendleft(reversed(taken))


class GraderPool:
    """Up to `settings.processes` processes with the same sources, started at first use."""

    def __init__(self, sources: Mapping[str, Any], settings: PoolSettings, budget: ProcessBudget, program: ChildProgram = PYTHON) -> None:
        self._sources = sources
        self._program = program
        self._settings = settings
        self._budget = budget
        self._closed = False
        self._batch = BATCH
        self._at_once = False
        """Whether a process stopped in the last call."""
        self._slots = asyncio.Semaphore(settings.processes)
        self._idle: list[GraderProcess] = []
        self._starting: list[asyncio.Task[GraderProcess]] = []
        """Starts that outlasted the call which began them."""
        self._fault: tuple[float, SourceError] | None = None
        """When the source did not load, and why."""
        self._useless: tuple[float, str] | None = None
        """When a grader without any result so far stopped on whatever it got, and why."""
        self._stops = 0
        """Times that a process stopped."""
        self._vain_calls = 0
        self.has_results = False
        """Whether a row has had a result, and since then fewer than `_VAIN_CALLS` were in vain."""
        budget.add(self)

    async def grade(self, rows: Sequence[Row], suspects: frozenset[int], seconds: float) -> GradeCall:
        """Grades `rows`. When the time is up, rows in neither `results` nor `stopped` were not reached.

        A row may take a quarter of `seconds`: a sample that hangs costs one quarter to notice and at most one to find.
        Raises SourceError for a source that does not load and UserCodeError if it cannot be confined.
        """
        call = GradeCall(rows, suspects, self._at_once or not self.has_results)
        workers = min(self._settings.processes, -(-len(rows) // self._batch))
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(call, seconds / 4))
        except TimeoutError:
            pass  # the caller sees which rows were not reached
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        self._at_once = bool(call.stops)
        if call.stops and not call.results and len(suspects) < len(rows):
            self._vain_calls += 1
            self.has_results = self.has_results and self._vain_calls < _VAIN_CALLS
        return call

    async def close(self) -> None:
        """Stops the processes; a busy process stops after its message."""
        self._closed = True
        self._budget.remove(self)
        await self._end_starts()
        while await self.shed():
            pass

    async def shed(self) -> bool:
        """Stops an idle process; False if there is none."""
        if not self._idle:
            return False
        await self._stop(self._idle.pop())
        return True

    async def _work(self, call: GradeCall, seconds: float) -> None:
        while call.has_left:
            async with self._slots:
                if self._gives_up(call):
                    return
                async with self._process() as process:
                    if taken := call.take(self._batch):
                        await self._grade(process, call, taken, seconds)

    def _gives_up(self, call: GradeCall) -> bool:
        """Whether the grader stops on whatever it gets: in this call, or a moment ago in whichever call."""
        if not self.has_results and self._useless is not None and time.monotonic() - self._useless[0] < _USELESS_SECONDS:
            call.stops.append(self._useless[1])
            return True
        return not call.results and len(call.stopped) >= _HOPELESS

    async def _grade(self, process: GraderProcess, call: GradeCall, taken: deque[int], seconds: float) -> None:
        def graded(result: Mapping[str, Any]) -> None:
            call.results[taken.popleft()] = result
            self.has_results, self._vain_calls = True, 0

        start = time.monotonic()
        try:
            await process.grade([call.rows[n] for n in taken], seconds, graded, at_once=call.at_once)
            self._batch = min(MAX_BATCH, 2 * self._batch) if time.monotonic() - start < _QUICK_SECONDS else BATCH
        except ProcessStoppedError as error:
            call.stop(taken, str(error))
            self._stops += 1
            if self._stops % _HOPELESS == 0:
                self._useless = time.monotonic(), str(error)

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[GraderProcess]:
        process = self._idle.pop() if self._idle else await self._started()
        try:
            yield process
        finally:
            if process.alive and not self._closed:
                self._idle.append(process)
            else:
                await self._stop(process)

    async def _started(self) -> GraderProcess:
        """A new process. A start that takes longer than the call goes on, and a later call gets the process."""
        if self._fault is not None and time.monotonic() - self._fault[0] < _FAULT_SECONDS:
            raise self._fault[1]
        start = self._starting.pop() if self._starting else asyncio.create_task(self._start(), name="start grader")
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            self._starting.append(start)
            if self._closed:
                await self._end_starts()
            raise

    async def _end_starts(self) -> None:
        starts, self._starting = self._starting, []
        for start in starts:
            start.cancel()
        for process in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(process, GraderProcess):
                await self._stop(process)

    async def _start(self) -> GraderProcess:
        await self._budget.acquire(self)
        try:
            return await GraderProcess.start(self._sources, self._program, allow_network=self._settings.allow_unisolated_network)
        except BaseException as error:
            self._budget.release()
            if isinstance(error, SourceError):
                self._fault = time.monotonic(), error
            raise

    async def _stop(self, process: GraderProcess) -> None:
        try:
            await process.stop()
        except ProcessStoppedError as error:
            _log.error("grader_process_remains", error=str(error))
        finally:
            self._budget.release()
