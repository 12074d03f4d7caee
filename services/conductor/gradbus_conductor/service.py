"""The conductor's main loop: takes every run that nobody drives, one task a run.

A run waits as `queued` until a trainer is free; the oldest comes first.
"""

from __future__ import annotations

import asyncio
import contextlib

from gradbus.background import cancelled
from gradbus.buffer import ExperienceLog, GroupStore
from gradbus.bus import Bucket, Buckets, EventLog, Lease, TaskQueue, View
from gradbus.errors import FencedError, GradbusError
from gradbus.process import Process
from gradbus.runs import FINAL_STATES, RunRecord, RunState, RunStatus
from gradbus.telemetry import get_logger
from gradbus.v1.weight_store_service_pb2 import OpenTermRequest
from gradbus_conductor.archive import Archive
from gradbus_conductor.preparation import prepare
from gradbus_conductor.report import Report
from gradbus_conductor.run import RunFrame, RunLoop
from gradbus_conductor.settings import Settings
from gradbus_conductor.wires import Wires
from gradbus_conductor.workforce import Workforce

_log = get_logger(__name__)
_LOOK_SECONDS = 0.5
_LAST_TERM = 2**53 - 1
"""Above every term a lease can have: after it nobody writes to the run again."""


class Conductor:
    """Drives runs until the process stops."""

    def __init__(self, wires: Wires, settings: Settings) -> None:
        self._wires = wires
        self._settings = settings
        self._driving: dict[str, asyncio.Task[None]] = {}

    async def serve(self, process: Process) -> None:
        """Looks for runs; on SIGTERM every run is let go, and another conductor takes it up from the log."""
        bus = self._wires.bus
        runs = await bus.bucket(Buckets.RUNS)
        assignments = await bus.bucket(Buckets.ASSIGNMENTS)
        workers = await bus.bucket(Buckets.WORKERS)
        async with runs.view() as view, workers.view() as present, assignments.view() as assigned:
            workforce = Workforce(assignments, present, assigned)
            process.ready = True
            while not process.stopping.is_set():
                self._driving = {run_id: task for run_id, task in self._driving.items() if not task.done()}
                for run_id in self._unfinished(view):
                    if run_id not in self._driving:
                        task = asyncio.create_task(self._drive(run_id, runs, view, workforce), name=f"run {run_id}")
                        self._driving[run_id] = task
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.stopping.wait(), _LOOK_SECONDS)
            await self._let_go()

    async def _let_go(self) -> None:
        await asyncio.gather(*(cancelled(task) for task in self._driving.values()))

    def _unfinished(self, view: View) -> list[str]:
        """Run ids sort by time of creation."""
        names = sorted(key.removesuffix(".spec") for key in view.entries if key.endswith(".spec"))
        return [name for name in names if _state(view, name) not in FINAL_STATES]

    async def _drive(self, run_id: str, runs: Bucket, view: View, workforce: Workforce) -> None:
        leases = await self._wires.bus.bucket(Buckets.LEASES)
        lease = await Lease.acquire(leases, f"conductor.{run_id}", self._settings.worker_id)
        if lease is None:
            await asyncio.sleep(_LOOK_SECONDS)
            return
        try:
            stored = await runs.get(f"{run_id}.spec")
            if stored is not None:
                record = RunRecord.model_validate_json(stored.value)
                await _Driver(self._wires, record, runs, view, workforce).drive(lease)
        except FencedError as error:
            _log.warning("run_let_go", run_id=run_id, reason=str(error))
        except Exception:  # noqa: BLE001 - the boundary of one run: logged whole; the run is taken up again from its log
            _log.exception("run_interrupted", run_id=run_id)
            await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await lease.release()


class _Driver:
    """One run's way through its states, around the loop."""

    def __init__(self, wires: Wires, record: RunRecord, runs: Bucket, view: View, workforce: Workforce) -> None:
        self._wires = wires
        self._record = record
        self._runs = runs
        self._view = view
        self._workforce = workforce
        events = EventLog(wires.bus, record.run_id)
        self._report = Report(runs, events, record.run_id, record.spec.schedule.groups_per_step)

    async def drive(self, lease: Lease) -> None:
        status = await self._report.recover()
        if status.state in FINAL_STATES:
            return
        state = await self._wait_for_trainer(lease)
        loop: RunLoop | None = None
        if state is None:
            try:
                prepared = await prepare(self._wires.objects, self._record)
            except GradbusError as error:
                self._report.fail(str(error))
                await self._end("failed", None)
                return
            self._report.prepared(prepared.train.prompts, prepared.evaluation.prompts if prepared.evaluation else "")
            if status.state == "queued":
                await self._report.transition("starting")
            else:
                await self._report.transition(status.state)
            loop = RunLoop(RunFrame(self._wires, self._record, prepared, self._runs, self._view, self._workforce, lease, self._report))
            state = await loop.drive()
        await self._end(state, loop)

    async def _wait_for_trainer(self, lease: Lease) -> RunState | None:
        """None once a trainer is assigned; the final state if the run is cancelled before."""
        run_id = self._record.run_id
        while True:
            if lease.lost.is_set():
                raise FencedError(f"the lease of {run_id} is lost; another conductor goes on with it")
            if self._report.desired(self._view) == "cancelled":
                return "cancelled"
            trainers = {worker.worker for worker in self._workforce.present("trainer")}
            if trainers & set(self._workforce.assigned_to(run_id)):
                return None
            if not self._is_behind_another() and await self._workforce.claim(run_id, "trainer", most=1):
                return None
            if self._report.status.updated_unix_ns == 0:
                await self._report.transition("queued", waiting_for="a free trainer")
            await asyncio.sleep(_LOOK_SECONDS)

    def _is_behind_another(self) -> bool:
        older = [key.removesuffix(".spec") for key in self._view.entries if key.endswith(".spec")]
        return any(name < self._record.run_id and _state(self._view, name) in {None, "queued"} for name in older)

    async def _end(self, state: RunState, loop: RunLoop | None) -> None:
        """Quiet first, then the final word."""
        run_id = self._record.run_id
        if state == "cancelled":
            await self._report.transition("cancelling")
            await TaskQueue(self._wires.bus, run_id).remove()
        if loop is not None and state == "succeeded":
            await loop.settle()
        await self._workforce.release(run_id)
        if state != "succeeded":
            await ExperienceLog(self._wires.buffer, run_id).open_term(_LAST_TERM)
            await self._wires.weight_store.OpenTerm(OpenTermRequest(run_id=run_id, term=_LAST_TERM), timeout=10.0)
        log = ExperienceLog(self._wires.buffer, run_id)
        await Archive(self._wires.objects, log, run_id).finish()
        await self._report.transition(state, self._report.status.reason)
        # Last of all: until the final word is written, another conductor may have to read what is there.
        await GroupStore(self._wires.buffer, run_id).remove_run()
        _log.info("run_ended", run_id=run_id, state=state)


def _state(view: View, run_id: str) -> RunState | None:
    value = view.get(f"{run_id}.status")
    return RunStatus.model_validate_json(value).state if value else None
