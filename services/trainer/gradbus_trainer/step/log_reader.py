"""Reads the experience log ahead of training, and says so when what it needs does not come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from redis.exceptions import RedisError

from gradbus.aio.tasks import background
from gradbus.bus import Bus, subjects
from gradbus.errors import CorruptRecordError
from gradbus.experience import ExperienceLog
from gradbus.spec import AlgorithmSpec
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_trainer.step.collector import Collected, Collector
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.step.prepared_group import prepare

_log = get_logger(__name__)
_BLOCK_SECONDS = 1.0
_PATIENCE_SECONDS = 1.0
_MOST_PATIENCE_SECONDS = 8.0


class LogReader:
    """Feeds a collector. The log's order is the only order there is."""

    def __init__(self, bus: Bus, log: ExperienceLog, run_id: str, collector: Collector, algorithm: AlgorithmSpec) -> None:
        self._bus = bus
        self._log = log
        self._run_id = run_id
        self._algorithm = algorithm
        self._collector = collector
        self._after = "0-0"
        self._news = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Groups that have come and that no step has taken."""
        return self._collector.size

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Reads in the background inside the block."""
        async with background(self._read(), "log") as self._task:
            self._task.add_done_callback(lambda _: self._news.set())
            yield

    async def step(self, step: int, frontier: Frontier) -> Sequence[Collected]:
        """The entries of step `step`. While they do not come, the conductor is told what has been trained."""
        patience = _PATIENCE_SECONDS
        while True:
            self._news.clear()
            if (items := self._collector.take(step)) is not None:
                return items
            if self._task.done():
                self._task.result()
            try:
                await asyncio.wait_for(self._news.wait(), patience)
            except TimeoutError:
                patience = min(2 * patience, _MOST_PATIENCE_SECONDS)
                _log.info("groups_missing", run_id=self._run_id, step=step, lacking=self._collector.lacking(step))
                progress = TrainerProgress(run_id=self._run_id, step=step, frontier=frontier.to_message())
                await self._bus.publish(subjects.missing(self._run_id), progress.SerializeToString())
                # A buffer that lost its log starts another: read again from its beginning, known entries change nothing.
                self._after = "0-0"

    async def _read(self) -> None:
        while True:
            try:
                entries = await self._log.read(self._after, wait_seconds=_BLOCK_SECONDS)
            except (RedisError, OSError) as error:
                _log.info("buffer_away", run_id=self._run_id, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)
                continue
            for stored in entries:
                self._after = stored.stream_id
                # What does not match its digest is never trained; missing, it is asked for and made again.
                with contextlib.suppress(CorruptRecordError):
                    entry = stored.decode()
                    prepared = prepare(entry, self._algorithm)
                    self._collector.add(Collected(entry, stored.digest, len(stored.record), prepared, stored.written))
            if entries:
                self._news.set()
