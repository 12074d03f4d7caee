"""Removes what finished runs left behind: a conductor may die after the final status, and a worker may write after the end."""

from __future__ import annotations

import asyncio
import time

from nats.errors import Error as NatsError
from nats.js.errors import APIError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gradbus.bus import Bucket
from gradbus.control.runs import FINAL_STATES
from gradbus.experience import GroupStore, runs_in
from gradbus.telemetry import get_logger
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.runs.retention import RunRetention, request_deletion
from gradbus_conductor.workers import WorkerPool

_log = get_logger(__name__)
_SWEEP_SECONDS = 10.0


class FinishedRunCleanup:
    """Frees workers and removes buffer keys of finished runs, and requests the deletion of old ones, periodically.

    Any number of conductors may do so at once.

    An unreadable run keeps its buffer keys, because its record may be fixed, but no worker.
    """

    def __init__(self, buffer: Redis, runs_bucket: Bucket, runs: RunIndex, pool: WorkerPool, retention: RunRetention) -> None:
        self._buffer = buffer
        self._bucket = runs_bucket
        self._runs = runs
        self._pool = pool
        self._retention = retention

    async def sweep_forever(self) -> None:
        """Sweeps until it is cancelled."""
        while True:
            try:
                await self.sweep()
            except (NatsError, APIError, RedisError, OSError) as error:
                _log.info("sweep_postponed", error=f"{type(error).__name__}: {error}")
            except Exception:  # noqa: BLE001 - without this task nothing would ever be cleaned up: logged whole, and tried again
                _log.exception("sweep_failed")
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Sweeps once. The buffer keys of a run that the bucket `runs` does not hold are left alone."""
        for run_id in self._pool.assigned_runs():
            # The conductor that released the others may have died before the last one.
            if await self._needs_no_worker(run_id):
                await self._pool.release(run_id)
        for run_id in await runs_in(self._buffer):
            if self._is_finished(run_id):
                _log.info("finished_run_removed", run_id=run_id)
                await GroupStore(self._buffer, run_id).remove_run()
        for run_id in self._retention.expired(self._runs, time.time_ns()):
            _log.info("run_expired", run_id=run_id)
            await request_deletion(self._bucket, run_id)

    async def _needs_no_worker(self, run_id: str) -> bool:
        place = self._runs.place(run_id)
        if place is None:  # gone, or so new that another conductor knows it already and this one does not
            return await self._bucket.get(f"{run_id}.spec") is None
        return place in {"finished", "deleted"} or bool(self._runs.unreadable_reason(run_id))

    def _is_finished(self, run_id: str) -> bool:
        return self._runs.state(run_id) in FINAL_STATES
