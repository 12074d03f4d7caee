"""Removes what finished runs left behind: a conductor may die after the final status, and a worker may write after the end."""

from __future__ import annotations

import asyncio

from nats.errors import Error as NatsError
from nats.js.errors import APIError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gradbus.bus import View
from gradbus.control.runs import FINAL_STATES
from gradbus.experience import GroupStore, runs_in
from gradbus.telemetry import get_logger
from gradbus_conductor.run.runs_bucket import state_of, unreadable_reason
from gradbus_conductor.workers import WorkerPool

_log = get_logger(__name__)
_SWEEP_SECONDS = 10.0


class FinishedRunCleanup:
    """Frees workers and removes buffer keys of finished runs, periodically. Any number of conductors may do so at once.

    An unreadable run keeps its buffer keys, because its record may be fixed, but no worker.
    """

    def __init__(self, buffer: Redis, runs: View, pool: WorkerPool) -> None:
        self._buffer = buffer
        self._runs = runs
        self._pool = pool

    async def sweep_forever(self) -> None:
        """Sweeps until it is cancelled."""
        while True:
            try:
                await self.sweep()
            except (NatsError, APIError, RedisError, OSError) as error:
                _log.info("sweep_failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Sweeps once. A run that the bucket `runs` does not hold is left alone."""
        await self._pool.release_finished(lambda run_id: self._is_finished(run_id) or bool(unreadable_reason(self._runs, run_id)))
        for run_id in await runs_in(self._buffer):
            if self._is_finished(run_id):
                _log.info("finished_run_removed", run_id=run_id)
                await GroupStore(self._buffer, run_id).remove_run()

    def _is_finished(self, run_id: str) -> bool:
        return state_of(self._runs, run_id) in FINAL_STATES
