"""One run, from its spec to its end.

        versions, groups, workers, desire ──▶ wake
        wake: collect ─▶ admit ─▶ evaluate ─▶ dispatch ─▶ repair ─▶ archive ─▶ report

Everything is compared with what should be, at every wake-up and twice a second; no message is counted on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gradbus import crash_points
from gradbus.bus import Bucket, Lease, TaskQueue, View, subjects
from gradbus.control.runs import DesiredState, RunRecord, RunState, WorkerPresence
from gradbus.errors import CorruptRecordError, FencedError
from gradbus.experience import ExperienceLog
from gradbus.experience.archive import ArchiveWriter
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_TRAIN, LogEntry
from gradbus.v1.task_pb2 import TASK_KIND_TRAIN, GroupsSampled
from gradbus.v1.weight_store_service_pb2 import GetCheckpointRequest, GetCheckpointResponse
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_conductor.clients import Clients
from gradbus_conductor.evaluation.evaluator import EvaluationWork, Evaluator
from gradbus_conductor.groups.dataset import Prepared
from gradbus_conductor.groups.pipeline import Sampling, SamplingWork
from gradbus_conductor.groups.schedule import Ready, schedule_for
from gradbus_conductor.run.heads import Heads
from gradbus_conductor.run.known_runs import queued
from gradbus_conductor.run.learning_signal import Ending, LearningSignal, ending_of
from gradbus_conductor.run.stall import Blockers, StallDetector
from gradbus_conductor.run.status import Report
from gradbus_conductor.workers.pool import WorkerPool

_log = get_logger(__name__)
_TICK_SECONDS = 0.5
_WAITING_SECONDS = 3.0
_TRAINER_SECONDS = 10.0
_STILL_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class RunFrame:
    """What a run is driven with."""

    clients: Clients
    record: RunRecord
    prepared: Prepared
    runs: Bucket
    desired: View
    pool: WorkerPool
    lease: Lease
    report: Report


class RunLoop:
    """Drives one run that has a trainer, until it ends or this conductor must let go."""

    def __init__(self, frame: RunFrame) -> None:
        self._frame = frame
        self._clients = frame.clients
        self._record = record = frame.record
        self._spec = record.spec
        self._wake = asyncio.Event()
        self._queue = TaskQueue(frame.clients.bus, record.run_id)
        self._log = ExperienceLog(frame.clients.buffer, record.run_id)
        self._events = frame.report.events
        self._archive = ArchiveWriter(frame.clients.objects, self._log, record.run_id)
        self._schedule = schedule_for(record.spec)
        self._sampling = Sampling(
            frame.clients, SamplingWork(record, frame.prepared.train.items, frame.prepared.order.row), self._queue, self._wake
        )
        self._sampling.show(frame.report.numbers, self._schedule.outstanding)
        held_out = EvaluationWork(record, frame.prepared.evaluation, frame.runs, self._events)
        self._evaluator = Evaluator(frame.clients, held_out, self._queue, self._wake)
        self._heads = Heads(record.run_id, self._wake)
        self._stall = StallDetector()
        self._learning_signal = LearningSignal(record.spec)
        self._learned = False
        self._trainer_seen = asyncio.get_running_loop().time()
        self._archived_step = -1
        self._has_dispatched = False
        self._repair_at = 0.0
        self._lacking: TrainerProgress | None = None
        self._moved = (-1, asyncio.get_running_loop().time())

    async def drive(self) -> Ending:
        """Works until the run is over, or is paused and makes way for another. Raises FencedError when another conductor has the run."""
        async with self._heads.follow(self._clients.bus), self._listening():
            try:
                await self._recover()
                await self._queue.purge()  # nobody has fetched these, and all that is lacking is sent by this conductor
                await self._dispatch(0)  # sends nothing yet: what workers tell of meanwhile was asked for by an earlier conductor
                while True:
                    if (ending := await self._pass()) is not None:
                        if ending.state in {"cancelled", "failed"}:
                            self._sampling.traces.abandon(ending.state)
                            self._evaluator.abandon(ending.state)
                        return ending
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), _TICK_SECONDS)
                    self._wake.clear()
            finally:
                await self._sampling.close()
                await self._evaluator.close()

    async def _pass(self) -> Ending | None:
        """One comparison of what is with what should be."""
        if self._frame.lease.lost.is_set():
            raise FencedError(f"the lease of {self._record.run_id} is lost; another conductor goes on with it")
        desired = self._frame.report.desired(self._frame.desired)
        if desired == "cancelled":
            return Ending("cancelled")
        if trouble := self._fatal_trouble():
            return Ending("failed", trouble)
        if self._lacking is not None:
            await self._recover()
        outstanding = self._schedule.outstanding()
        await self._sampling.collect(outstanding)
        await self._admit()
        workers = self._frame.pool.serving(self._record.run_id, "rollout")
        if desired == "running":
            await self._evaluator.advance(self._heads.version, workers)
            await self._dispatch(len(workers))
            if self._is_time_to_repair():
                await self._frame.pool.claim(self._record.run_id, "rollout")
                await self._keep_trainer()
                await self._sampling.repair(self._schedule.outstanding(), workers)
        await self._archive_checkpoint()
        await self._report(desired == "paused", workers)
        if self._stands_still(desired) and self._makes_way():
            return Ending("paused")
        return await ending_of(self._archive.reader, learned=self._learned) if self._is_complete() else None

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        async def sampled(payload: bytes) -> None:
            message = GroupsSampled.FromString(payload)
            if message.kind == TASK_KIND_TRAIN:
                self._sampling.signalled(message.indexes)
            else:
                self._evaluator.signalled(message.version, message.indexes)
            self._wake.set()

        async def missing(payload: bytes) -> None:
            # The trainer's word outranks our memory: the buffer may have lost what we appended.
            progress = TrainerProgress.FromString(payload)
            # One that stands before the newest checkpoint was replaced and does not know it. For what is still being made
            # there is nothing to look for: the log is read from its beginning, and a trainer that waits says so again and again.
            if progress.step >= max(self._heads.checkpoint, self._archived_step) and not self._schedule.owes(progress.step):
                self._lacking = progress
                self._wake.set()

        bus, run_id = self._clients.bus, self._record.run_id
        async with bus.subscribed(subjects.groups(run_id), sampled), bus.subscribed(subjects.missing(run_id), missing):
            yield

    async def _recover(self) -> None:
        """Builds the schedule's state from the log and the newest checkpoint, which are all there is to know."""
        await self._log.open_term(self._frame.lease.term)
        await self._evaluator.recover()
        trained = self._lacking or await self._trained()
        self._lacking = None
        self._learning_signal.clear()
        entries: list[tuple[int, bool]] = []
        corrupt = []
        after = "0-0"
        while stored := await self._log.read(after):
            after = stored[-1].stream_id
            for item in stored:
                try:
                    entry = item.decode()
                    entries.append((item.index, entry.verdict == VERDICT_TRAIN))
                    self._learning_signal.add(entry)
                except CorruptRecordError as error:
                    _log.warning("corrupt_entry", run_id=self._record.run_id, index=item.index, error=str(error))
                    corrupt.append(item)
        if corrupt:
            await self._log.forget(self._frame.lease.term, corrupt)
        held = {index for index, _ in entries} | set(trained.frontier.above)
        if lost := await self._log.reopen(self._frame.lease.term, trained.frontier.below, held):
            _log.warning("log_lost_entries", run_id=self._record.run_id, indexes=lost)
        self._schedule.recover(entries, trained.frontier.below, trained.frontier.above, trained.step)
        self._sampling.settled([index for index, _ in entries])

    async def _admit(self) -> None:
        """Moves judged groups into the log, as far as the schedule lets them."""
        judged = self._sampling.judged
        outstanding = self._schedule.outstanding()
        ready = [self._ready(entry) for index, entry in judged.items() if index in outstanding]
        if self._frame.report.paused:
            self._sampling.excuse(outstanding)
        admission = self._schedule.admit(ready, self._sampling.overdue(outstanding, self._spec.schedule.group_deadline_seconds))
        entries = {index: judged[index] for index in admission.append}
        entries |= {index: self._dropped(index, reason) for index, reason in admission.drop.items()}
        if entries:
            await self._append(entries)
            crash_points.reached("after-append")
            self._frame.report.count(entries.values())
            for index, entry in entries.items():
                self._schedule.appended(index, entry.verdict == VERDICT_TRAIN)
                self._learning_signal.add(entry)
        self._sampling.settled([*entries, *(index for index in list(judged) if index not in outstanding and index not in entries)])

    async def _append(self, entries: dict[int, LogEntry]) -> None:
        began = time.time_ns()
        self._sampling.traces.stamp(entries)
        accepted = await self._log.append(self._frame.lease.term, entries)
        self._sampling.traces.admitted([entries[index] for index in accepted], began)

    def _ready(self, entry: LogEntry) -> Ready:
        return Ready(entry.index, self._sampling.oldest_version(entry.index), entry.verdict == VERDICT_TRAIN)

    def _dropped(self, index: int, reason: str) -> LogEntry:
        entry = LogEntry(index=index, verdict=VERDICT_DROPPED, reason=reason, version=self._schedule.outstanding()[index])
        if (judged := self._sampling.judged.get(index)) is not None:
            entry.group = judged.group
            entry.rewards.extend(judged.rewards)
        self._events.emit("dropped", f"group {index} was dropped: {reason}", {"index": index, "reason": reason}, "warning")
        return entry

    async def _dispatch(self, workers: int) -> None:
        if self._heads.version < 0:
            return
        groups = {item.index: item.version for item in self._schedule.dispatchable(self._heads.version)}
        if groups and self._has_dispatched:
            await self._sampling.dispatch(groups, workers)
        elif groups:
            # An earlier conductor may have sent these: like overdue ones they are looked for, claimed or in the buffer, and only then sent.
            self._has_dispatched, self._repair_at = True, 0.0

    def _is_time_to_repair(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._repair_at:
            return False
        self._repair_at = now + _TICK_SECONDS
        return True

    async def _keep_trainer(self) -> None:
        """Time enough for one that restarts under its name; then another, if one is free."""
        now = asyncio.get_running_loop().time()
        if self._frame.pool.serving(self._record.run_id, "trainer"):
            self._trainer_seen = now
        elif now - self._trainer_seen > _TRAINER_SECONDS:
            await self._frame.pool.keep_trainer(self._record.run_id)

    def _stands_still(self, desired: DesiredState) -> bool:
        """Whether the run is paused and has come to rest."""
        now = asyncio.get_running_loop().time()
        if desired != "paused" or self._heads.version != self._moved[0]:
            self._moved = (self._heads.version, now)
        return now - self._moved[1] > _STILL_SECONDS

    def _makes_way(self) -> bool:
        """Whether another run waits for a trainer and none is free."""
        pool = self._frame.pool
        waiting = set(queued(self._frame.desired)) - {self._record.run_id}  # what is seen of ourselves may be old
        return bool(waiting) and all(pool.run_of(one.worker) for one in pool.present("trainer"))

    def _fatal_trouble(self) -> str:
        if self._learning_signal.no_signal:
            return self._learning_signal.warning
        everybody = [worker for role in ("trainer", "rollout", "reference") for worker in self._frame.pool.present(role)]
        return next((worker.trouble for worker in everybody if worker.run_id == self._record.run_id and worker.fatal), "")

    async def _checkpoint(self) -> GetCheckpointResponse:
        if self._heads.checkpoint < 0:
            return GetCheckpointResponse()
        request = GetCheckpointRequest(run_id=self._record.run_id)
        return await self._clients.weight_store.GetCheckpoint(request, timeout=10.0)

    async def _trained(self) -> TrainerProgress:
        checkpoint = (await self._checkpoint()).manifest
        return TrainerProgress(run_id=self._record.run_id, step=checkpoint.step, frontier=checkpoint.frontier)

    async def _archive_checkpoint(self) -> None:
        if self._heads.checkpoint > self._archived_step:
            newest = await self._checkpoint()
            checkpoint = newest.manifest
            await self._archive.advance(checkpoint.frontier)
            if checkpoint.step >= self._spec.schedule.steps:
                # The trainer tells it too, under the same key; one that died after its last commit never comes back to it.
                data = {"step": checkpoint.step, "digest": newest.digest}
                self._events.emit("checkpoint", f"checkpoint {checkpoint.step}", data, key=f"checkpoint:{checkpoint.step}")
            self._archived_step = checkpoint.step
            # AdamW has no state before its first step.
            self._learned = bool(checkpoint.optimizer)

    async def _report(self, paused: bool, rollouts: Sequence[WorkerPresence]) -> None:
        report = self._frame.report
        failing = self._sampling.failing(_WAITING_SECONDS) or self._evaluator.failing(_WAITING_SECONDS)
        report.warning = self._learning_signal.warning
        report.scoring_seconds = self._sampling.scoring_seconds
        report.tokens = self._sampling.tokens
        if evaluation := self._evaluator.newest:
            report.accuracy = evaluation.accuracy
        state: RunState = "running" if self._heads.version >= 0 else "starting"
        if paused:
            state = "paused"
        elif failing:
            state = "waiting_for_reward"
        elif self._heads.version >= self._spec.schedule.steps:
            state = "evaluating"
        trainers = self._frame.pool.serving(self._record.run_id, "trainer")
        report.observe(trainers, rollouts)
        waiting = failing if state == "waiting_for_reward" else ""
        if not paused and not waiting:
            outstanding = self._schedule.outstanding()
            debt = Blockers(trainers, rollouts, outstanding, self._evaluator.running)
            waiting = self._stall.reason(self._heads.version, len(outstanding), debt)
        await report.write(state, self._heads, waiting)

    def _is_complete(self) -> bool:
        return (
            self._heads.checkpoint >= self._spec.schedule.steps
            and self._evaluator.due() is None
            and self._archived_step >= self._spec.schedule.steps
        )

    async def settle(self) -> None:
        """After the last step: whatever was dispatched and not trained leaves with a reason."""
        left = list(self._schedule.outstanding())
        entries = {index: self._dropped(index, "end of run") for index in left}
        await self._append(entries)
        for index in left:
            self._schedule.appended(index, False)
