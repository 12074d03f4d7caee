"""What runs that are over left behind: a conductor may die after the final word, and a worker may come back late."""

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
from gradbus_conductor.run.known_runs import fault_of, state_of
from gradbus_conductor.workers.pool import WorkerPool

_log = get_logger(__name__)
_SWEEP_SECONDS = 10.0


class Leftovers:
    """Frees workers and removes buffer keys of runs that are over, again and again. Any number of conductors may.

    A run that cannot be read keeps its buffer keys, for it may be mended, but no worker.
    """

    def __init__(self, buffer: Redis, runs: View, pool: WorkerPool) -> None:
        self._buffer = buffer
        self._runs = runs
        self._pool = pool

    async def watch(self) -> None:
        """Sweeps for ever."""
        while True:
            try:
                await self.sweep()
            except (NatsError, APIError, RedisError, OSError) as error:
                _log.info("sweep_put_off", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Once. A run that is not known here is let alone."""
        await self._pool.release_finished(lambda run_id: self._is_over(run_id) or bool(fault_of(self._runs, run_id)))
        for run_id in await runs_in(self._buffer):
            if self._is_over(run_id):
                _log.info("leftovers_removed", run_id=run_id)
                await GroupStore(self._buffer, run_id).remove_run()

    def _is_over(self, run_id: str) -> bool:
        return state_of(self._runs, run_id) in FINAL_STATES
