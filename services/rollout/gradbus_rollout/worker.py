"""The rollout's main loop: one run on one engine.

    fetch ─▶ inbox ─▶ task of the lowest version that can run ─▶ engine ─▶ buffer ─▶ hint

Tasks are fetched while others run, and groups are written while others are sampled, so the engine always has work.
The conductor dispatches again whatever is lost on the way.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus import Bus, Delivery, TaskQueue
from gradbus.control.runs import RunRecord
from gradbus.errors import AttestationError, CorruptRecordError, StorageError, VersionGoneError
from gradbus.experience import GroupStore
from gradbus.process import WorkerHeartbeat
from gradbus.process.device_lease import DeviceLease
from gradbus.process.device_turns import DeviceTurns
from gradbus.telemetry import PROCESS, Metrics, get_logger
from gradbus.telemetry.busy import BusyShare
from gradbus.v1.task_pb2 import Task, TaskKind
from gradbus_rollout.engines.base import Engine
from gradbus_rollout.tasks.generation_traces import recorded
from gradbus_rollout.tasks.group_publisher import GroupPublisher
from gradbus_rollout.tasks.inbox import TaskInbox
from gradbus_rollout.tasks.sampler import TaskSampler
from gradbus_rollout.weights.version_loader import VersionLoader

_log = get_logger(__name__)
_CONCURRENT_TASKS = 4
_TASK_TOKENS = 1 << 22
"""Of one task: the samples of a task are all in memory until the last one ends. Enough that the tasks in progress fill the slots."""
_RETRY_SECONDS = 0.5
_LOAD_ATTEMPTS = 3
_TRANSIENT = (AttestationError, CorruptRecordError, StorageError)
"""Failures of a load that may pass: the load is tried again, because ending the worker would lose all samples in flight."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """Dependencies of a worker, opened for one run."""

    bus: Bus
    groups: GroupStore
    engine: Engine
    versions: VersionLoader
    sampler: TaskSampler
    heartbeat: WorkerHeartbeat
    metrics: Metrics
    lease: DeviceLease | None = None
    """Of a device that a trainer uses in turns with this worker."""
    trace_texts: bool = False
    """Whether spans carry prompts and answers."""


class RolloutWorker:
    """Serves one run until it is cancelled."""

    def __init__(self, record: RunRecord, parts: WorkerParts) -> None:
        self._run_id = record.run_id
        self._spec = record.spec
        self._parts = parts
        self._presence = parts.heartbeat.presence
        self._queue = TaskQueue(parts.bus, record.run_id)
        rollout = record.spec.rollout
        self._inbox = TaskInbox(max(1, _TASK_TOKENS // (rollout.group_size * record.spec.max_drawn_tokens)))
        self._publisher = GroupPublisher(parts.bus, parts.groups, record.run_id, self._presence)
        self._loaded_version = -1
        self._free = record.spec.schedule.mode == "free"
        self._jobs: set[asyncio.Task[None]] = set()
        self._busy = BusyShare()
        self._loading = BusyShare()
        self._turns = DeviceTurns(parts.lease, self)
        parts.metrics.set("gradbus.run.time", self._busy.total, {"gradbus.phase": "generate"})
        self.abandoned = 0
        """Groups of tasks that were abandoned because their version was gone."""

    async def serve(self) -> None:
        """Fetches, samples and publishes until cancelled. Raises the error of a load that failed for good, or of the engine."""
        fetch: asyncio.Task[None] | None = None
        wanted: asyncio.Task[None] | None = None
        changed = self._parts.versions.changed
        try:
            while True:
                if fetch is None and self._has_room():
                    fetch = asyncio.create_task(self._fetch(), name="fetch")
                changed.clear()
                await self._start_tasks()
                if wanted is None and self._turns.is_on_device:
                    wanted = asyncio.create_task(self._turns.wanted(lambda: not self._jobs), name="device wanted")
                new_version = asyncio.create_task(changed.wait(), name="new version")
                try:
                    awaited = {new_version, *self._jobs} | {task for task in (fetch, wanted) if task}
                    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    new_version.cancel()
                self._finish_jobs()
                if fetch is not None and fetch.done():
                    fetch.result()
                    fetch = None
                self._update_presence()
                if wanted is not None and wanted.done():
                    wanted.result()
                    wanted = None
                    await self._leave_device()
        finally:
            await cancel_and_wait(*self._jobs, *(task for task in (fetch, wanted) if task))

    async def _fetch(self) -> None:
        """Fetches tasks. They are claimed here while the worker waits for its device: the conductor would send them again.

        Episodes, too, and at once: their tasks may open thousands, and no heartbeat is in time while they begin.
        """
        fetched, has_episodes = await self._queue.fetch(_CONCURRENT_TASKS), self._spec.environment is not None
        for delivery in fetched:
            self._inbox.add(delivery)
        if has_episodes or not self._turns.is_on_device:
            self._update_presence()
        if has_episodes and fetched:
            await self._parts.heartbeat.publish()

    # Turns on the device: this worker is the tenant

    async def _leave_device(self) -> None:
        """Without samples in flight, the worker comes back when a task needs a version."""
        await self._turns.end()
        if self._jobs:
            await self._turns.begin()

    async def release(self) -> None:
        """See `DeviceTenant.release`. Samples in flight wait in the engine."""
        await self._parts.engine.release()

    async def resume(self) -> None:
        """See `DeviceTenant.resume`. Samples in flight go on with their version, without them the next load takes the memory."""
        version, self._loaded_version = self._loaded_version, -1
        if self._jobs and version >= 0 and not await self._load(version):
            raise VersionGoneError(f"version {version} was deleted while its samples waited for the device; they are sampled again")

    # Which task runs next, and with which version

    async def _start_tasks(self) -> None:
        """Starts every task that can run now; loads another version when the lowest task needs it."""
        while True:
            delivery = self._inbox.lowest(self._can_run)
            if delivery is None:
                if self._free and self._loaded_version < self._newest and not self._is_evaluating():
                    await self._load(self._newest)
                return
            version = self._version_for(delivery.task)
            swaps_in_flight = self._free and not self._is_evaluating() and version == self._newest
            if not self._has_loaded(version):
                if self._jobs and not swaps_in_flight:
                    return  # the tasks of the loaded version finish first
                if not await self._load(version):
                    self._abandon(delivery)
                    continue
            if len(self._inbox.running) >= _CONCURRENT_TASKS:
                return
            self._inbox.start(delivery)
            self._jobs.add(asyncio.create_task(self._run(delivery), name=f"task {delivery.task.task_id}"))

    def _has_room(self) -> bool:
        """Whether to fetch more tasks: other workers may take those that this one could only keep."""
        waiting = self._inbox.ready(self._can_run)
        return max(len(self._inbox.running), len(waiting)) < _CONCURRENT_TASKS

    def _can_run(self, task: Task) -> bool:
        return task.version <= self._newest

    def _version_for(self, task: Task) -> int:
        """The version in the task; in a `free` schedule, the newest for training."""
        return self._newest if self._free and task.kind == TaskKind.TASK_KIND_TRAIN else task.version

    @property
    def _newest(self) -> int:
        """The newest version published, as far as this worker knows."""
        return self._parts.versions.newest

    def _has_loaded(self, version: int) -> bool:
        """Compares the digest too: a restarted trainer may publish other weights under the same number, in a higher term."""
        published = self._parts.versions.digest(version)
        return version == self._loaded_version and published in {"", self._presence.digest}

    def _is_evaluating(self) -> bool:
        """An evaluation runs, whose samples must come from one version alone."""
        return any(task.kind == TaskKind.TASK_KIND_EVALUATION for task in self._inbox.running)

    async def _load(self, version: int) -> bool:
        """Loads a version into the engine, on the device; False when retention has deleted it."""
        await self._turns.begin()
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            try:
                with self._loading:
                    self._presence.digest = await self._parts.versions.load(self._parts.engine, self._presence.worker, version)
            except VersionGoneError as error:
                _log.info("version_gone", run_id=self._run_id, version=version, error=str(error))
                return False
            except _TRANSIENT as error:
                _log.error("load_failed", run_id=self._run_id, version=version, attempt=attempt, error=f"{type(error).__name__}: {error}")
                if attempt == _LOAD_ATTEMPTS:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            break
        self._loaded_version = self._presence.version = version
        self._parts.metrics.set("gradbus.weights.version", version)
        return True

    def _abandon(self, delivery: Delivery) -> None:
        task = delivery.task
        self.abandoned += len(task.groups)
        PROCESS.count("gradbus.groups.abandoned", len(task.groups))
        _log.warning("task_abandoned", run_id=self._run_id, task_id=task.task_id, version=task.version, groups=len(task.groups))
        self._inbox.finish(delivery)

    # One task

    async def _run(self, delivery: Delivery) -> None:
        """Samples a task's groups and publishes them."""
        task = delivery.task
        with self._busy, recorded(delivery, {"gradbus.run.id": self._run_id}) as times:
            groups = await self._parts.sampler.sample(task, times)
            times.groups = groups if self._parts.trace_texts else ()
            await self._publisher.publish(task, groups)
        if groups and task.kind == TaskKind.TASK_KIND_TRAIN:
            self._parts.heartbeat.progressed(max(group.index for group in groups))
        self._inbox.finish(delivery)

    def _finish_jobs(self) -> None:
        """Removes the jobs that are done; raises the error of one that failed."""
        for job in [job for job in self._jobs if job.done()]:
            self._jobs.remove(job)
            job.result()

    def _update_presence(self) -> None:
        """Claims and shares of time, which the next heartbeat publishes."""
        self._presence.busy, self._presence.loading = self._busy.share(), self._loading.share()
        self._presence.claims = self._inbox.claims
        self._presence.evaluation_claims = self._inbox.evaluation_claims
