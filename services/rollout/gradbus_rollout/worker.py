"""One run on one engine.

    fetch ─▶ task box ─▶ lowest runnable version ─▶ engine ─▶ buffer ─▶ "sampled"

The engine is kept full: tasks are fetched while others run, and a group goes to the buffer while the next is
sampled. Whatever is lost on the way the conductor dispatches again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError

from gradbus import crash_points
from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus import Bus, Delivery, TaskQueue, subjects
from gradbus.control.runs import RunRecord
from gradbus.errors import AttestationError, CorruptRecordError, StorageError, VersionGoneError
from gradbus.experience import GroupStore
from gradbus.process import WorkerHeartbeat
from gradbus.telemetry import PROCESS, Metrics, get_logger, under
from gradbus.v1.group_pb2 import Group
from gradbus.v1.task_pb2 import GroupsSampled, GroupTask, Task, TaskKind
from gradbus_rollout.engines.base import Engine
from gradbus_rollout.tasks.prompt_table import PromptTable
from gradbus_rollout.tasks.samples import group_message, request_for
from gradbus_rollout.tasks.taskbox import TaskBox
from gradbus_rollout.telemetry.busy_time import BusyTime
from gradbus_rollout.telemetry.generation_traces import first_trace, told
from gradbus_rollout.weights.versions import Versions

_log = get_logger(__name__)
_FETCHED_TASKS = 4
_RETRY_SECONDS = 0.5
_LOAD_ATTEMPTS = 3
_LOAD_FAULTS = (AttestationError, CorruptRecordError, StorageError)
"""What may go well the next time; giving up costs the engine and all that it samples."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker works with."""

    bus: Bus
    groups: GroupStore
    engine: Engine
    versions: Versions
    training: PromptTable
    evaluation: PromptTable | None
    heartbeat: WorkerHeartbeat
    numbers: Metrics


class RolloutWorker:
    """Serves one run until it is cancelled."""

    def __init__(self, record: RunRecord, parts: WorkerParts) -> None:
        self._run_id = record.run_id
        self._spec = record.spec
        self._parts = parts
        self._queue = TaskQueue(parts.bus, record.run_id)
        self._box = TaskBox()
        self._held = -1
        self._free = record.spec.schedule.mode == "free"
        self._jobs: set[asyncio.Task[None]] = set()
        self._busy = BusyTime()
        parts.numbers.set("gradbus.run.time", self._busy.total, {"gradbus.phase": "generate"})
        self.dropped = 0
        """Groups whose version was gone."""

    async def serve(self) -> None:
        """Fetches, samples and delivers, for ever. Raises what keeps a version from being brought in whole."""
        fetch: asyncio.Task[list[Delivery]] | None = None
        changed = self._parts.versions.changed
        try:
            while True:
                if fetch is None and len(self._box.running) < _FETCHED_TASKS:
                    fetch = asyncio.create_task(self._queue.fetch(_FETCHED_TASKS), name="fetch")
                changed.clear()
                await self._start_what_can_run()
                news = asyncio.create_task(changed.wait(), name="news")
                try:
                    await asyncio.wait({news, *self._jobs} | ({fetch} if fetch else set()), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                self._reap()
                if fetch is not None and fetch.done():
                    for delivery in fetch.result():
                        self._box.add(delivery)
                    fetch = None
                self._show_claims()
        finally:
            await asyncio.gather(*(cancel_and_wait(task) for task in [*self._jobs, *([fetch] if fetch else [])]))

    async def _start_what_can_run(self) -> None:
        """Starts tasks of the version held; changes the version when an older or newer one is due."""
        while True:
            delivery = self._box.lowest(lambda task: task.version <= self._parts.versions.newest)
            if delivery is None:
                if self._free and self._held < self._parts.versions.newest and not self._exact_work():
                    await self._hold(self._parts.versions.newest)
                return
            wanted = self._version_for(delivery.task)
            swaps_in_flight = self._free and not self._exact_work() and wanted == self._parts.versions.newest
            if not self._holds(wanted):
                if self._jobs and not swaps_in_flight:
                    return  # the version held finishes its samples first
                if not await self._hold(wanted):
                    self._drop(delivery)
                    continue
            if len(self._box.running) >= _FETCHED_TASKS:
                return
            self._box.start(delivery)
            self._jobs.add(asyncio.create_task(self._run(delivery), name=f"task {delivery.task.task_id}"))

    def _version_for(self, task: Task) -> int:
        """The task's own; in a `free` schedule training takes the newest."""
        return self._parts.versions.newest if self._free and task.kind == TaskKind.TASK_KIND_TRAIN else task.version

    def _holds(self, version: int) -> bool:
        """A restarted trainer may have published other bits under the same number: the higher term's are followed."""
        published = self._parts.versions.digest(version)
        return version == self._held and published in {"", self._parts.heartbeat.presence.digest}

    def _exact_work(self) -> bool:
        return any(task.kind == TaskKind.TASK_KIND_EVALUATION for task in self._box.running)

    async def _hold(self, version: int) -> bool:
        """Brings a version into the engine; False when it is gone."""
        presence = self._parts.heartbeat.presence
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            try:
                presence.digest = await self._parts.versions.load(self._parts.engine, presence.worker, version)
            except VersionGoneError as error:
                _log.info("version_gone", run_id=self._run_id, version=version, error=str(error))
                return False
            except _LOAD_FAULTS as error:
                _log.error("load_failed", run_id=self._run_id, version=version, attempt=attempt, error=f"{type(error).__name__}: {error}")
                if attempt == _LOAD_ATTEMPTS:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            break
        self._held = presence.version = version
        self._parts.numbers.set("gradbus.weights.version", version)
        return True

    def _drop(self, delivery: Delivery) -> None:
        task = delivery.task
        self.dropped += len(task.groups)
        PROCESS.count("gradbus.groups.abandoned", len(task.groups))
        _log.warning("task_dropped", run_id=self._run_id, task_id=task.task_id, version=task.version, groups=len(task.groups))
        self._box.finish(delivery)

    async def _run(self, delivery: Delivery) -> None:
        task = delivery.task
        table = self._table(task)
        size = self._spec.rollout.group_size
        requests = [request_for(task, group, table.ids(group.row), self._spec.seed, size) for group in task.groups]
        with self._busy, told(delivery, {"gradbus.run.id": self._run_id}) as times:
            with under(first_trace(task)):
                sampling = asyncio.ensure_future(self._parts.engine.generate(requests))
            await asyncio.sleep(0)
            crash_points.reached("mid-decode")
            completions = await sampling
            times.note(completions)
            messages = [
                group_message(self._header(task, group, table), request, completion, table.decode)
                for group, request, completion in zip(task.groups, requests, completions, strict=True)
            ]
            await self._deliver(task, messages)
        self._box.finish(delivery)

    async def _deliver(self, task: Task, messages: Sequence[Group]) -> None:
        """Into the buffer first: the message afterwards is only a hint. A buffer that is away is waited for."""
        while True:
            try:
                if task.kind == TaskKind.TASK_KIND_TRAIN:
                    await self._parts.groups.put(messages)
                else:
                    await self._parts.groups.put_evaluation(task.version, messages)
                break
            except (RedisError, OSError) as error:
                _log.info("buffer_away", run_id=self._run_id, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
        note = GroupsSampled(
            run_id=self._run_id,
            kind=task.kind,
            version=task.version,
            indexes=[message.index for message in messages],
            worker=self._parts.heartbeat.presence.worker,
        )
        await self._parts.bus.publish(subjects.groups(self._run_id), note.SerializeToString())

    def _header(self, task: Task, group: GroupTask, table: PromptTable) -> Group:
        return Group(
            run_id=self._run_id,
            index=group.index,
            row=group.row,
            version=task.version,
            prompt_text=table.text(group.row),
            worker=self._parts.heartbeat.presence.worker,
            engine=self._parts.engine.name,
            traceparent=group.traceparent,
        )

    def _table(self, task: Task) -> PromptTable:
        if task.kind == TaskKind.TASK_KIND_EVALUATION and self._parts.evaluation is not None:
            return self._parts.evaluation
        return self._parts.training

    def _reap(self) -> None:
        for job in [job for job in self._jobs if job.done()]:
            self._jobs.remove(job)
            job.result()

    def _show_claims(self) -> None:
        presence = self._parts.heartbeat.presence
        presence.busy = self._busy.share()
        presence.claims = self._box.claims
        presence.evaluation_claims = self._box.evaluation_claims
