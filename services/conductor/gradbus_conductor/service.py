"""The conductor's main loop: takes every run that nobody drives, one task a run.

A run waits as `queued` until a trainer is free; the oldest comes first. One whose keys cannot be read is passed over.
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
from gradbus_conductor.run.cleanup import Leftovers
from gradbus_conductor.run.driver import Driver
from gradbus_conductor.run.known_runs import fault_of, to_drive
from gradbus_conductor.settings import Settings
from gradbus_conductor.workers.pool import WorkerPool

_log = get_logger(__name__)
_LOOK_SECONDS = 0.5
_MOST_QUEUED = 8
"""Runs that are told what they wait for; those behind them wait without a word."""


class Conductor:
    """Drives runs until the process stops."""

    def __init__(self, clients: Clients, settings: Settings) -> None:
        self._clients = clients
        self._settings = settings
        self._driving: dict[str, asyncio.Task[None]] = {}
        self._faults: dict[str, str] = {}

    async def serve(self, process: Process) -> None:
        """Looks for runs; on SIGTERM every run is let go, and another conductor takes it up from the log."""
        bus = self._clients.bus
        runs = await bus.bucket(Buckets.RUNS)
        assignments = await bus.bucket(Buckets.ASSIGNMENTS)
        workers = await bus.bucket(Buckets.WORKERS)
        async with runs.view("*.*") as view, workers.view() as present, assignments.view() as assigned:
            pool = WorkerPool(assignments, present, assigned)
            process.ready = True
            async with background(Leftovers(self._clients.buffer, view, pool).watch(), "leftovers"):
                while not process.stopping.is_set():
                    self._take_up(runs, view, pool)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.stopping.wait(), _LOOK_SECONDS)
                await self._let_go()

    def _take_up(self, runs: Bucket, view: View, pool: WorkerPool) -> None:
        self._driving = {run_id: task for run_id, task in self._driving.items() if not task.done()}
        for run_id in to_drive(view, _MOST_QUEUED):
            if fault := fault_of(view, run_id):
                self._pass_over(run_id, fault)
            elif run_id not in self._driving:
                self._driving[run_id] = asyncio.create_task(self._drive(run_id, runs, view, pool), name=f"run {run_id}")

    async def _let_go(self) -> None:
        await asyncio.gather(*(cancel_and_wait(task) for task in self._driving.values()))

    def _pass_over(self, run_id: str, fault: str) -> None:
        if self._faults.get(run_id) != fault:
            self._faults[run_id] = fault
            _log.error("run_unreadable", run_id=run_id, error=fault)
        if run_id in self._driving:
            self._driving[run_id].cancel()

    async def _drive(self, run_id: str, runs: Bucket, view: View, pool: WorkerPool) -> None:
        leases = await self._clients.bus.bucket(Buckets.LEASES)
        lease = await Lease.acquire(leases, f"conductor.{run_id}", self._settings.worker_id)
        if lease is None:
            await asyncio.sleep(_LOOK_SECONDS)
            return
        try:
            stored = await runs.get(f"{run_id}.spec")
            if stored is not None:
                record = RunRecord.model_validate_json(stored.value)
                await Driver(self._clients, record, runs, view, pool).drive(lease)
        except FencedError as error:
            _log.warning("run_let_go", run_id=run_id, reason=str(error))
        except Exception:  # noqa: BLE001 - the boundary of one run: logged whole; the run is taken up again from its log
            _log.exception("run_interrupted", run_id=run_id)
            await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await lease.release()
