"""Reads the run's experience log ahead of training, and reports to the conductor when a step's groups do not arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from redis.exceptions import RedisError

from gradbus.aio.tasks import background
from gradbus.algorithms import Algorithm
from gradbus.bus import Bus, subjects
from gradbus.errors import CorruptRecordError
from gradbus.experience import ExperienceLog
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_trainer.step.collector import Collector
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.step.groups import LoggedGroup

_log = get_logger(__name__)
_BLOCK_SECONDS = 1.0
_RETRY_SECONDS = 0.2
_FIRST_REPORT_SECONDS = 1.0
_MAX_REPORT_SECONDS = 8.0

ReportMissing = Callable[[int], Awaitable[None]]
"""Called with the step whose groups do not arrive, again and again until they do."""


def missing_reporter(bus: Bus, run_id: str, frontier: Frontier) -> ReportMissing:
    """Sends the trainer's progress to the conductor, which dispatches the groups that are missing again."""

    async def report(step: int) -> None:
        progress = TrainerProgress(run_id=run_id, step=step, frontier=frontier.to_message())
        await bus.publish(subjects.missing(run_id), progress.SerializeToString())

    return report


class LiveLog:
    """The `StepSource` of a run that is being sampled: feeds a collector in the order of the log."""

    def __init__(self, run_id: str, log: ExperienceLog, algorithm: Algorithm, collector: Collector, report_missing: ReportMissing) -> None:
        self._run_id = run_id
        self._log = log
        self._algorithm = algorithm
        self._collector = collector
        self._report_missing = report_missing
        self._after = "0-0"
        self._arrived = asyncio.Event()

    @property
    def waiting(self) -> int:
        """See `StepSource`."""
        return self._collector.size

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Reads in the background inside the block."""
        async with background(self._read(), "log") as self._task:
            self._task.add_done_callback(lambda _: self._arrived.set())
            yield

    async def next_step(self, step: int) -> Sequence[LoggedGroup] | None:
        """See `StepSource`; never None. Raises the error of the background task."""
        seconds = _FIRST_REPORT_SECONDS
        while True:
            self._arrived.clear()
            if (groups := self._collector.take(step)) is not None:
                return groups
            if self._task.done():
                self._task.result()
            try:
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
            except TimeoutError:
                seconds = min(2 * seconds, _MAX_REPORT_SECONDS)
                _log.info("groups_missing", run_id=self._run_id, step=step, lacking=self._collector.lacking(step))
                await self._report_missing(step)
                # A buffer that lost its log starts another: read again from its beginning, known entries change nothing.
                self._after = "0-0"

    async def _read(self) -> None:
        while True:
            try:
                entries = await self._log.read(self._after, wait_seconds=_BLOCK_SECONDS)
            except (RedisError, OSError) as error:
                _log.info("buffer_unreachable", run_id=self._run_id, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for stored in entries:
                self._after = stored.stream_id
                # An entry that does not match its digest counts as missing: the conductor has it made again.
                with contextlib.suppress(CorruptRecordError):
                    self._collector.add(LoggedGroup.of(stored, self._algorithm))
            if entries:
                self._arrived.set()
