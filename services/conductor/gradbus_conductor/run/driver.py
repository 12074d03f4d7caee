"""One run's way through its states, around its loop."""

from __future__ import annotations

import asyncio
import contextlib

from grpc.aio import AioRpcError

from gradbus.bus import Bucket, EventLog, Lease, TaskQueue, View
from gradbus.control.runs import FINAL_STATES, RunRecord, RunState
from gradbus.errors import DatasetError, FencedError, ObjectMissingError
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.experience.archive import ArchiveWriter
from gradbus.rpc import describe_rpc_error
from gradbus.telemetry import exporting, get_logger
from gradbus.v1.weight_store_service_pb2 import OpenTermRequest
from gradbus_conductor.clients import Clients
from gradbus_conductor.groups.dataset import prepare
from gradbus_conductor.run.known_runs import queued, state_of
from gradbus_conductor.run.loop import RunFrame, RunLoop
from gradbus_conductor.run.status import Report
from gradbus_conductor.workers.pool import WorkerPool

_log = get_logger(__name__)
_LOOK_SECONDS = 0.5
_LAST_TERM = 2**53 - 1
"""Above every term a lease can have: after it nobody writes to the run again."""


class Driver:
    """Drives one run under one lease. Whatever it dies between, the next one goes on from what is stored."""

    def __init__(self, clients: Clients, record: RunRecord, runs: Bucket, view: View, pool: WorkerPool) -> None:
        self._clients = clients
        self._record = record
        self._runs = runs
        self._view = view
        self._pool = pool
        events = EventLog(clients.bus, record.run_id)
        self._report = Report(runs, events, record.run_id, record.spec.schedule.groups_per_step)
        self._report.numbers.set("gradbus.run.steps", record.spec.schedule.steps)

    async def drive(self, lease: Lease) -> None:
        """Returns when the run is over. Whatever stops it otherwise is raised, and told in the run's status."""
        try:
            with exporting(self._report.numbers):
                await self._drive(lease)
        except FencedError:
            raise
        except Exception as error:
            status = self._report.status
            if status.state not in FINAL_STATES:
                with contextlib.suppress(Exception):
                    await self._report.transition(status.state, status.reason, f"{self._words(error)}; it is tried again")
            raise

    def _words(self, error: Exception) -> str:
        if isinstance(error, AioRpcError):  # of the others' calls none fails a run
            return describe_rpc_error("the weight store", self._clients.addresses.weight_store, error)
        return f"{type(error).__name__}: {error}"

    async def _drive(self, lease: Lease) -> None:
        status = await self._report.recover()
        if status.state in FINAL_STATES:
            return
        if status.ending:
            await self._end(status.ending, status.reason)
            return
        while await self._has_trainer(lease):
            if await self._worked(lease):
                return
            # Paused, and another run waits: the next trainer goes on from the checkpoint and the log, as after a kill.
            await self._pool.release(self._record.run_id)
        await self._end("cancelled")

    async def _worked(self, lease: Lease) -> bool:
        """Drives the run with the trainer it has: to its end, or False if it makes way."""
        try:
            prepared = await prepare(self._clients.objects, self._record)
        except (DatasetError, ObjectMissingError) as error:
            await self._end("failed", str(error))
            return True
        self._report.prepared(prepared.train.prompts, prepared.evaluation.prompts if prepared.evaluation else "")
        state = self._report.status.state
        await self._report.transition("starting" if state == "queued" else state)
        loop = RunLoop(RunFrame(self._clients, self._record, prepared, self._runs, self._view, self._pool, lease, self._report))
        ending = await loop.drive()
        if ending.state == "paused":
            return False
        if ending.state == "succeeded":
            await loop.settle()
        await self._end(ending.state, ending.reason)
        return True

    async def _has_trainer(self, lease: Lease) -> bool:
        """True once a trainer is assigned, False if the run is cancelled before. A paused run takes none."""
        run_id = self._record.run_id
        while True:
            if lease.lost.is_set():
                raise FencedError(f"the lease of {run_id} is lost; another conductor goes on with it")
            desired = self._report.desired(self._view)
            if desired == "cancelled":
                return False
            if desired == "paused":
                await self._pool.release(run_id)  # what an earlier conductor took, for others may wait
                await self._wait("paused", "")
            elif not self._ahead() and await self._pool.keep_trainer(run_id):
                return True
            else:
                await self._wait("queued", f"a free trainer: {self._who_has_the_trainers()}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _wait(self, state: RunState, waiting_for: str) -> None:
        status = self._report.status
        if not status.updated_unix_ns or (status.state, status.waiting_for) != (state, waiting_for):
            await self._report.transition(state, waiting_for=waiting_for)

    def _ahead(self) -> str:
        """The oldest run that waits as well, if it is older than this one."""
        oldest = next(queued(self._view), "")
        return oldest if oldest < self._record.run_id else ""

    def _who_has_the_trainers(self) -> str:
        serving = [(worker.worker, self._pool.run_of(worker.worker)) for worker in self._pool.present("trainer")]
        if not serving:
            return "none is there; start one, or look into its log"
        if any(not run_id for _, run_id in serving) and (first := self._ahead()):
            return f"run {first} comes first"
        return ", ".join(f"{worker} has run {run_id}, {self._state_in_words(run_id)}" for worker, run_id in serving if run_id)

    def _state_in_words(self, run_id: str) -> str:
        state = state_of(self._view, run_id)
        return "which is paused: resume or cancel it" if state == "paused" else str(state or "starting").replace("_", " ")

    async def _end(self, state: RunState, reason: str = "") -> None:
        """Decided first, then quiet, then the final word. Every part may be done again."""
        run_id = self._record.run_id
        await self._report.transition("cancelling" if state == "cancelled" else self._report.status.state, reason, ending=state)
        await TaskQueue(self._clients.bus, run_id).remove()
        await self._pool.release(run_id)
        log = ExperienceLog(self._clients.buffer, run_id)
        if state != "succeeded":
            await log.open_term(_LAST_TERM)
            await self._clients.weight_store.OpenTerm(OpenTermRequest(run_id=run_id, term=_LAST_TERM), timeout=10.0)
        await ArchiveWriter(self._clients.objects, log, run_id).finish()
        await self._report.transition(state, reason)
        # Last of all: until the final word is written, another conductor may have to read what is there.
        await GroupStore(self._clients.buffer, run_id).remove_run()
        _log.info("run_ended", run_id=run_id, state=state)
