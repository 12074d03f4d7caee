"""The conductor's main loop: takes every run that no conductor drives, one task per run.

A run waits as `queued` until a trainer is free; the oldest comes first. Runs with unreadable keys are skipped.
"""

from __future__ import annotations

import asyncio
import contextlib

from gradbus.aio.tasks import background, cancel_and_wait
from gradbus.bus import Bucket, Buckets, Lease, View
from gradbus.control.runs import RunRecord
from gradbus.errors import FencedError
from gradbus.process import Process
from gradbus.telemetry import get_logger
from gradbus_conductor.clients import Clients
from gradbus_conductor.run.cleanup import FinishedRunCleanup
from gradbus_conductor.run.driver import Driver
from gradbus_conductor.run.runs_bucket import runs_to_drive, unreadable_reason
from gradbus_conductor.settings import Settings
from gradbus_conductor.workers import WorkerPool

_log = get_logger(__name__)
_POLL_SECONDS = 0.5
_MAX_QUEUED = 8
"""Queued runs whose status says what they wait for; runs behind them have no lease and no status yet."""


class Conductor:
    """Drives runs until the process stops."""

    def __init__(self, clients: Clients, settings: Settings) -> None:
        self._clients = clients
        self._settings = settings
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unreadable: dict[str, str] = {}
        """Run id to the reason, as last logged."""

    async def serve(self, process: Process) -> None:
        """Drives runs; on SIGTERM it releases every run, and another conductor continues from the log."""
        bus = self._clients.bus
        runs_bucket = await bus.bucket(Buckets.RUNS)
        assignments = await bus.bucket(Buckets.ASSIGNMENTS)
        workers = await bus.bucket(Buckets.WORKERS)
        async with runs_bucket.view("*.*") as runs, workers.view() as present, assignments.view() as assigned:
            pool = WorkerPool(assignments, present, assigned)
            process.ready = True
            async with background(FinishedRunCleanup(self._clients.buffer, runs, pool).sweep_forever(), "cleanup"):
                while not process.stopping.is_set():
                    self._start_runs(runs_bucket, runs, pool)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.stopping.wait(), _POLL_SECONDS)
                await self._release_runs()

    def _start_runs(self, runs_bucket: Bucket, runs: View, pool: WorkerPool) -> None:
        self._tasks = {run_id: task for run_id, task in self._tasks.items() if not task.done()}
        for run_id in runs_to_drive(runs, _MAX_QUEUED):
            if reason := unreadable_reason(runs, run_id):
                self._skip(run_id, reason)
            elif run_id not in self._tasks:
                self._tasks[run_id] = asyncio.create_task(self._drive(run_id, runs_bucket, runs, pool), name=f"run {run_id}")

    async def _release_runs(self) -> None:
        await asyncio.gather(*(cancel_and_wait(task) for task in self._tasks.values()))

    def _skip(self, run_id: str, reason: str) -> None:
        if self._unreadable.get(run_id) != reason:
            self._unreadable[run_id] = reason
            _log.error("run_unreadable", run_id=run_id, error=reason)
        if run_id in self._tasks:
            self._tasks[run_id].cancel()

    async def _drive(self, run_id: str, runs_bucket: Bucket, runs: View, pool: WorkerPool) -> None:
        leases = await self._clients.bus.bucket(Buckets.LEASES)
        lease = await Lease.acquire(leases, f"conductor.{run_id}", self._settings.worker_id)
        if lease is None:
            await asyncio.sleep(_POLL_SECONDS)
            return
        try:
            stored = await runs_bucket.get(f"{run_id}.spec")
            if stored is not None:
                record = RunRecord.model_validate_json(stored.value)
                await Driver(self._clients, record, runs_bucket, runs, pool).drive(lease)
        except FencedError as error:
            _log.warning("run_fenced", run_id=run_id, reason=str(error))
        except Exception:  # noqa: BLE001 - the boundary of one run: logged whole, and driven again from its log
            _log.exception("run_interrupted", run_id=run_id)
            await asyncio.sleep(_POLL_SECONDS)
        finally:
            await lease.release()
