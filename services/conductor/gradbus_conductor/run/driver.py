"""One run's way through its states: queued until it has a trainer, driven by its loop, and brought to its end."""

from __future__ import annotations

import contextlib

from grpc.aio import AioRpcError

from gradbus.aio.tasks import gather_or_cancel
from gradbus.bus import Bucket, Buckets, EventLog, Lease, TaskQueue
from gradbus.control.condemned import CondemnedBlobs
from gradbus.control.failures import described
from gradbus.control.runs import FINAL_STATES, RunRecord, RunState
from gradbus.errors import DatasetError, FencedError, ObjectMissingError
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.experience.archive import ArchiveWriter
from gradbus.rpc import describe_rpc_error
from gradbus.run_files.record import store_record
from gradbus.telemetry import export_metrics, get_logger
from gradbus.v1.weight_store_service_pb2 import OpenTermRequest
from gradbus_conductor.clients import Clients
from gradbus_conductor.groups.dataset import DataReader
from gradbus_conductor.run.context import RunContext
from gradbus_conductor.run.loop import RunLoop
from gradbus_conductor.run.status import RunStatusWriter
from gradbus_conductor.run.trainers import TrainerQueue
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.workers import WorkerPool

_log = get_logger(__name__)
_POLL_SECONDS = 0.5
_LAST_TERM = 2**53 - 1
"""Above every term a lease can have: it fences all writers of a run that is over."""


class Driver:
    """Drives one run under one lease. At whatever point it dies, its successor continues from what is stored."""

    def __init__(self, clients: Clients, record: RunRecord, runs_bucket: Bucket, runs: RunIndex, pool: WorkerPool) -> None:
        self._clients = clients
        self._record = record
        self._runs_bucket = runs_bucket
        self._runs = runs
        self._pool = pool
        self._trainer_queue = TrainerQueue(record, runs_bucket, runs, pool)
        events = EventLog(clients.bus, record.run_id)
        self._status = RunStatusWriter(runs_bucket, events, record.run_id, record.spec.schedule.groups_per_step)
        self._status.metrics.set("gradbus.run.steps", record.spec.schedule.steps)

    async def drive(self, lease: Lease) -> None:
        """Returns when the run is over. Any other interruption is raised, and described in the run's status."""
        context = RunContext(self._clients, self._record, self._runs_bucket, self._runs, self._pool, lease, self._status)
        try:
            with export_metrics(self._status.metrics):
                await self._drive(context)
        except FencedError:
            raise
        except Exception as error:
            status = self._status.status
            if status.state not in FINAL_STATES:
                with contextlib.suppress(Exception):
                    await self._status.transition(status.state, status.reason, f"{self._describe(error)}; the conductor tries again")
            raise

    async def fail(self, cause: str) -> None:
        """Ends a run whose driver fails again and again."""
        status = await self._status.recover()
        reason = f"the conductor cannot drive the run: {cause}; correct what it names, or look into the conductor's log"
        if status.state not in FINAL_STATES:
            await (self._end(status.ending, status.reason) if status.ending else self._end("failed", reason))

    def _describe(self, error: Exception) -> str:
        if isinstance(error, AioRpcError):  # a failed call to any other service interrupts no run
            return describe_rpc_error("the weight store", self._clients.addresses.weight_store, error)
        return described(error)

    async def _drive(self, context: RunContext) -> None:
        status = await self._status.recover()
        if status.state in FINAL_STATES:
            return
        if status.ending:
            await self._end(status.ending, status.reason)
            return
        while await self._wait_for_trainer(context):
            if await self._run_with_trainer(context):
                return
            # Another run waits for the trainer: the next one continues from the checkpoint and the log, as after a kill.
            await self._pool.release(context.run_id)
            await gather_or_cancel([self._pool.catch_up(), self._runs.catch_up()])  # else it would seem to have a trainer still
        await self._end("cancelled")

    async def _run_with_trainer(self, context: RunContext) -> bool:
        """Drives the run to its end; False if it yields its trainer to another run."""
        try:
            condemned = CondemnedBlobs(await self._clients.bus.bucket(Buckets.CONDEMNED))
            data = await DataReader(self._clients.objects, condemned, self._clients.cache_dir).load(self._record)
        except (DatasetError, ObjectMissingError) as error:
            await self._end("failed", str(error))
            return True
        self._status.begin(data.train.prompts, data.evaluation.prompts if data.evaluation else "")
        state = self._status.status.state
        await self._status.transition("starting" if state == "queued" else state)
        await store_record(self._clients.objects, self._record)  # a run that has begun has an archive, which is read without the bus
        loop = RunLoop(context, data)
        ending = await loop.drive()
        if ending.state == "queued":
            await self._status.yield_trainer(ending.reason)
        if ending.state in {"paused", "queued"}:
            return False
        if ending.state == "succeeded":
            await loop.drop_outstanding()
        await self._end(ending.state, ending.reason)
        return True

    async def _wait_for_trainer(self, context: RunContext) -> bool:
        """True once a trainer is assigned, False if the run is cancelled before. A paused run takes no trainer."""
        while True:
            context.check_lease()
            desired = context.desired
            if desired == "cancelled":
                return False
            if desired == "paused":
                await self._pool.release(context.run_id)  # an earlier conductor may have taken workers that other runs wait for
                await self._show("paused", "")
            elif await self._trainer_queue.acquire():
                return True
            else:
                await self._show("queued", self._trainer_queue.waiting_for())
            await self._pool.wait_for_trainers(_POLL_SECONDS)

    async def _show(self, state: RunState, waiting_for: str) -> None:
        status = self._status.status
        if not status.updated_unix_ns or (status.state, status.waiting_for) != (state, waiting_for):
            reason = status.reason if status.yielded_unix_ns and state == "queued" else ""
            await self._status.transition(state, reason, waiting_for)

    async def _end(self, state: RunState, reason: str = "") -> None:
        """Stores the decision, stops all writers, then writes the final status. Every part may be repeated."""
        run_id = self._record.run_id
        await self._status.transition("cancelling" if state == "cancelled" else self._status.status.state, reason, ending=state)
        await TaskQueue(self._clients.bus, run_id).remove()
        await self._pool.release(run_id)
        log = ExperienceLog(self._clients.buffer, run_id)
        if state != "succeeded":
            await log.open_term(_LAST_TERM)
            await self._clients.weight_store.OpenTerm(OpenTermRequest(run_id=run_id, term=_LAST_TERM), timeout=10.0)
        await ArchiveWriter(self._clients.objects, log, run_id).finish()
        await self._status.transition(state, reason)
        # Last: until the final status is written, another conductor may have to read these keys.
        await GroupStore(self._clients.buffer, run_id).remove_run()
        _log.info("run_ended", run_id=run_id, state=state)
