"""The conductor's main loop: takes every run that no conductor drives, one task per run.

A run waits as `queued` until a trainer is free; API keys take turns, and of a key the oldest run comes first. Runs with unreadable keys are
skipped. However many wait, few are driven.
"""

from __future__ import annotations

import asyncio
import contextlib

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.aio.tasks import background, cancel_and_wait
from gradbus.bus import Bucket, Buckets, Lease
from gradbus.control.failures import MOST_FAILURES, RunFailures
from gradbus.control.runs import RunRecord
from gradbus.errors import FencedError
from gradbus.process import Process
from gradbus.telemetry import get_logger
from gradbus_conductor.clients import Clients
from gradbus_conductor.run.driver import Driver
from gradbus_conductor.run.waiting import WaitingRuns
from gradbus_conductor.runs.cleanup import FinishedRunCleanup
from gradbus_conductor.runs.deletion import RunDeletion
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.runs.retention import RunRetention
from gradbus_conductor.settings import Settings
from gradbus_conductor.workers import WorkerPool

_log = get_logger(__name__)
_POLL_SECONDS = 0.5
_MOST_BACKOFF_SECONDS = 60.0
_MAX_WAITING = 8
"""Queued runs whose status says what they wait for; runs behind them have no lease and no status yet. As many cancelled runs that had begun
are brought to their end at once."""
_UNDRIVEN = frozenset({"queue", "unsettled", "idle"})
"""Places in which a run waits: its driver is stopped when the run is no longer near the head of the queue, or no longer in it."""


class Conductor:
    """Drives runs until the process stops."""

    def __init__(self, clients: Clients, settings: Settings) -> None:
        self._clients = clients
        self._settings = settings
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unreadable: dict[str, str] = {}
        """Run id to the reason, as last logged."""
        self._failures: dict[str, RunFailures] = {}
        """Of the runs whose drivers failed, until they end."""

    async def serve(self, process: Process) -> None:
        """Drives runs; on SIGTERM it releases every run, and another conductor continues from the log."""
        bus = self._clients.bus
        runs_bucket = await bus.bucket(Buckets.RUNS)
        assignments = await bus.bucket(Buckets.ASSIGNMENTS)
        workers = await bus.bucket(Buckets.WORKERS)
        async with runs_bucket.view("*.*") as view, workers.view() as present, assignments.view() as assigned:
            runs, pool = RunIndex(view), WorkerPool(assignments, present, assigned)
            waiting = WaitingRuns(bus, runs_bucket, runs, pool, self._tasks.__contains__)
            retention = RunRetention(self._settings.keep_finished_runs, self._settings.keep_finished_days)
            cleanup = FinishedRunCleanup(self._clients.buffer, runs_bucket, runs, pool, retention)
            process.ready = True
            async with (
                background(waiting.settle_forever(), "waiting runs"),
                background(cleanup.sweep_forever(), "cleanup"),
                background(RunDeletion(self._clients, runs_bucket, runs).delete_forever(), "deletion"),
            ):
                while not process.stopping.is_set():
                    self._start_runs(runs_bucket, runs, pool)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_POLL_SECONDS):
                            await process.stopping.wait()
                await self._release_runs()

    def _start_runs(self, runs_bucket: Bucket, runs: RunIndex, pool: WorkerPool) -> None:
        for run_id in [run_id for run_id, task in self._tasks.items() if task.done()]:
            del self._tasks[run_id]
        needed = runs.to_drive(_MAX_WAITING, pool.assigned_runs(), pool.runs_with_trainers())
        for run_id in self._tasks.keys() - needed:
            if (place := runs.place(run_id)) is None or place in _UNDRIVEN:  # None: its submission was withdrawn
                self._tasks[run_id].cancel()
        for run_id in needed:
            if run_id not in self._tasks:
                self._tasks[run_id] = asyncio.create_task(self._drive(run_id, runs_bucket, runs, pool), name=f"run {run_id}")
        for run_id, reason in runs.unreadable().items():
            self._skip(run_id, reason)

    async def _release_runs(self) -> None:
        await cancel_and_wait(*self._tasks.values())

    def _skip(self, run_id: str, reason: str) -> None:
        if self._unreadable.get(run_id) != reason:
            self._unreadable[run_id] = reason
            _log.error("run_unreadable", run_id=run_id, error=reason)
        if run_id in self._tasks:
            self._tasks[run_id].cancel()

    async def _drive(self, run_id: str, runs_bucket: Bucket, runs: RunIndex, pool: WorkerPool) -> None:
        lease = await self._lease(run_id)
        if lease is None:
            await asyncio.sleep(_POLL_SECONDS)
            return
        try:
            stored = await runs_bucket.get(f"{run_id}.spec")
            if stored is not None:
                driver = Driver(self._clients, RunRecord.model_validate_json(stored.value), runs_bucket, runs, pool)
                failures = self._failures.get(run_id)
                await (driver.fail(failures.cause) if failures and failures.ends_run else driver.drive(lease))
            self._failures.pop(run_id, None)
        except FencedError as error:
            _log.warning("run_fenced", run_id=run_id, reason=str(error))
        except Exception as error:  # noqa: BLE001 - the boundary of one run: logged whole, and driven again from its log
            _log.exception("run_interrupted", run_id=run_id)
            await asyncio.sleep(self._failed(run_id, error, runs.step(run_id)))
        finally:
            await lease.release()

    async def _lease(self, run_id: str) -> Lease | None:
        try:
            leases = await self._clients.bus.bucket(Buckets.LEASES)
            return await Lease.acquire(leases, f"conductor.{run_id}", self._settings.worker_id)
        except (NatsError, APIError, TimeoutError) as error:
            _log.info("lease_not_acquired", run_id=run_id, error=f"{type(error).__name__}: {error}")
            return None

    def _failed(self, run_id: str, error: Exception, progress: int) -> float:
        """Counts the failure of a driver; returns the seconds until the next attempt, which ends the run if it fails again and again."""
        failures = self._failures.setdefault(run_id, RunFailures(run_id))
        failures.progressed(progress)
        failures.add(error)
        return min(_MOST_BACKOFF_SECONDS, _POLL_SECONDS * 2.0 ** max(0, failures.count - MOST_FAILURES))
