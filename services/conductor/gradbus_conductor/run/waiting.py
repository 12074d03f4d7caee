"""What users request of waiting runs that no conductor drives: paused and cancelled ones, hundreds in one batch.

A run that has not begun has no queue, no log and no versions, so it ends with an event and a status. Users may cancel thousands at
once, which must not delay the runs that are driven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice

from nats.errors import Error as NatsError
from nats.js.errors import APIError
from pydantic import ValidationError

from gradbus.aio.tasks import gather_or_cancel
from gradbus.bus import Bucket, Bus, EventLog
from gradbus.bus.batch import MOST_MESSAGES, Message
from gradbus.control.runs import RunState
from gradbus.errors import FencedError
from gradbus.telemetry import get_logger
from gradbus_conductor.run.status import RunStatusWriter
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.workers import WorkerPool

_log = get_logger(__name__)
_POLL_SECONDS = 0.25
_PARALLEL = 32


class WaitingRuns:
    """Writes the status of waiting runs that were paused, or cancelled before they began.

    It takes no lease. The status is written by compare-and-set: if a conductor takes the run up meanwhile, one of the two is refused.
    """

    def __init__(self, bus: Bus, runs_bucket: Bucket, runs: RunIndex, pool: WorkerPool, is_driven: Callable[[str], bool]) -> None:
        """`is_driven`: whether a driver of this process has the run, which then shows the request itself."""
        self._bus = bus
        self._bucket = runs_bucket
        self._runs = runs
        self._pool = pool
        self._is_driven = is_driven
        self._turns = asyncio.Semaphore(_PARALLEL)

    async def settle_forever(self) -> None:
        """Settles until it is cancelled."""
        while True:
            try:
                settled = await self.settle()
            except (NatsError, APIError, TimeoutError) as error:
                settled = 0
                _log.info("settling_postponed", error=f"{type(error).__name__}: {error}")
            except Exception:  # noqa: BLE001 - without this task no waiting run would ever be settled: logged whole, and tried again
                settled = 0
                _log.exception("settling_failed")
            if not settled:
                await asyncio.sleep(_POLL_SECONDS)

    async def settle(self) -> int:
        """Settles one batch; the number of runs in it. Raises errors of NATS."""
        driven = self._pool.assigned_runs()
        waiting = (name for name in self._runs.names("unsettled") if not (name in driven or self._is_driven(name)))
        batch = list(islice(waiting, MOST_MESSAGES))
        new = [run_id for run_id in batch if self._runs.state(run_id) is None]
        known = [run_id for run_id in batch if self._runs.state(run_id) is not None]
        settled = await self._settle_together(new) + sum(await gather_or_cancel([self._settle(run_id) for run_id in known]))
        if settled:
            await self._runs.catch_up()
            _log.info("waiting_runs_settled", runs=settled, left=len(self._runs.names("unsettled")))
        return settled

    async def _settle_together(self, run_ids: Sequence[str]) -> int:
        """Settles runs without a status by one write of their events and one of their statuses; their number."""
        events: list[Message] = []
        statuses: list[Message] = []
        for run_id in run_ids:
            writer = self._writer(run_id)
            statuses.append(self._bucket.creation(f"{run_id}.status", writer.change(self._wanted(run_id))))
            events += writer.events.take()
        if not run_ids:
            return 0
        try:
            await self._bus.publish_batch(events)
            await self._bus.publish_batch(statuses)
        except APIError as error:
            # Another conductor has one of them, or died after it wrote the events, or an older release made the bucket.
            _log.info("settled_one_by_one", runs=len(run_ids), error=str(error))
            return sum(await gather_or_cancel([self._settle(run_id) for run_id in run_ids]))
        return len(run_ids)

    async def _settle(self, run_id: str) -> bool:
        async with self._turns:
            writer, state = self._writer(run_id), self._wanted(run_id)
            try:
                status = await writer.recover()
                waits = status.state in {"queued", "paused"} and status.ending is None
                if not waits or status.state == state or (state == "cancelled" and status.has_begun):
                    return False  # the index is behind
                await writer.transition(state)
                await writer.events.flush()
            except (FencedError, ValidationError):
                return False  # another conductor has the run, or wrote what this release cannot read
        return True

    def _writer(self, run_id: str) -> RunStatusWriter:
        return RunStatusWriter(self._bucket, EventLog(self._bus, run_id), run_id, groups_per_step=1)

    def _wanted(self, run_id: str) -> RunState:
        return "cancelled" if self._runs.desired(run_id) == "cancelled" else "paused"
