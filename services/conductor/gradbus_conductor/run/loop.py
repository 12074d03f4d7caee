"""The loop of one run.

        versions, groups, workers, desired state ──▶ wake
        wake: collect ─▶ admit ─▶ evaluate ─▶ dispatch ─▶ change the scorer ─▶ archive
        twice a second, before: look for faults; after: repair ─▶ write the status

Each pass compares the stored state with what the schedule wants, at every wake-up and twice a second: no message is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from gradbus.bus import TaskQueue, subjects
from gradbus.control.runs import DesiredState, RunState, RunStatus
from gradbus.experience import ExperienceLog, GroupStore
from gradbus.spec import RewardChange
from gradbus.v1.task_pb2 import TASK_KIND_TRAIN, GroupsSampled
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_conductor.evaluation.evaluator import EvaluationConfig, Evaluator
from gradbus_conductor.groups.dataset import RunData
from gradbus_conductor.groups.first_answers import FirstAnswers
from gradbus_conductor.groups.pipeline import GroupPipeline, PipelineConfig
from gradbus_conductor.run.admission import GroupAdmission
from gradbus_conductor.run.buffer_quota import BufferQuota
from gradbus_conductor.run.checkpoints import CheckpointArchiver
from gradbus_conductor.run.context import Ending, RunContext
from gradbus_conductor.run.deaths import PreparationWatch, StepWatch
from gradbus_conductor.run.heads import Heads
from gradbus_conductor.run.learning_signal import LearningSignal
from gradbus_conductor.run.recovery import recover_schedule
from gradbus_conductor.run.stall import Blockers, StallDetector
from gradbus_conductor.run.status import RunSnapshot
from gradbus_conductor.run.trainers import TrainerWatch
from gradbus_conductor.schedules.of_run import schedule_for
from gradbus_conductor.scorer_schedule import ScorerSchedule

_TICK_SECONDS = 0.5
_SCORING_GRACE_SECONDS = 3.0
"""Age of a group from which a failing scorer shows in the status."""
_FIRST_CALL_SECONDS = 1.0
"""Duration of a first call from which the status names the service."""


class RunLoop:
    """Drives one run that has a trainer, until it ends, yields its trainer, or another conductor takes it over."""

    def __init__(self, context: RunContext, data: RunData) -> None:
        clients, record, status = context.clients, context.record, context.status
        self._context = context
        self._steps = record.spec.schedule.steps
        self._wake = asyncio.Event()
        self._queue = TaskQueue(clients.bus, record.run_id)
        self._log = ExperienceLog(clients.buffer, record.run_id, journaled=record.spec.may_have_journal)
        self._heads = Heads(record.run_id, self._wake)
        self._schedule = schedule_for(record.spec)
        self._learning_signal = LearningSignal(record.spec)
        self._first_answers = FirstAnswers()
        work = PipelineConfig(record, data.train.items, data.order.row, first_answers=self._first_answers)
        self._pipeline = GroupPipeline(clients, work, self._queue, self._wake)
        self._pipeline.export_metrics(status.metrics, self._schedule.outstanding)
        evaluation = EvaluationConfig(record, data.evaluation, context.runs_bucket, status.events, self._first_answers)
        self._evaluator = Evaluator(clients, evaluation, self._queue, self._wake)
        self._admission = GroupAdmission(context, self._log, self._schedule, self._pipeline, self._learning_signal)
        self._groups = GroupStore(clients.buffer, record.run_id, journaled=record.spec.may_have_journal)
        self._buffer_quota = BufferQuota(self._log, self._groups, clients.run_buffer_bytes)
        self._scorers = ScorerSchedule(context.runs_bucket, record, status.events)
        self._checkpoints = CheckpointArchiver(context, self._log, self._heads)
        self._trainer_watch = TrainerWatch(record, context.runs, context.pool)
        self._preparation = PreparationWatch(record.run_id, context.pool.live)
        self._step_watch = StepWatch(record.run_id, context.pool.live)
        self._stall = StallDetector()
        self._is_registered = False
        """Whether outstanding groups were registered; only groups that are new since then are dispatched without a search."""
        self._reached = -1
        """The highest version that a trainer has reached."""
        self._look_at = self._repair_at = 0.0
        self._missing_report: TrainerProgress | None = None
        """Progress of a trainer that lacks groups which the log should hold."""

    async def drive(self) -> Ending:
        """Runs passes until the run is over, or is paused and yields its trainer. Raises FencedError when another conductor has the run."""
        async with self._heads.follow(self._context.clients.bus), self._subscribed():
            try:
                self._take(await self._scorers.recover())
                await self._recover()
                await self._change_scorer()  # before the first group: what was asked for while the run waited judges all of them
                await self._queue.purge()  # nobody has fetched these tasks, and this conductor dispatches what is missing
                self._register_outstanding()
                while (ending := await self._pass()) is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_TICK_SECONDS):
                            await self._wake.wait()
                    self._wake.clear()
                if ending.state in {"cancelled", "failed"}:
                    self._pipeline.traces.abandon(ending.state)
                    self._evaluator.abandon(ending.state)
                return ending
            finally:
                await self._pipeline.close()
                await self._evaluator.close()

    async def drop_outstanding(self) -> None:
        """After the last step: logs every group that was dispatched and not trained as dropped."""
        await self._admission.drop_outstanding("end of run")

    async def _pass(self) -> Ending | None:
        """Compares once what is with what should be; returns how the run ends, if it does."""
        self._context.check_lease()
        desired = self._context.desired
        if desired == "cancelled":
            return Ending("cancelled")
        self._reached = max(self._reached, self._present_version)
        looks = self._looks()
        if looks and (fault := self._fault(desired) or await self._over_quota()):
            return Ending("failed", fault)
        if self._missing_report is not None:
            await self._recover()
        await self._pipeline.collect(self._schedule.outstanding())
        await self._admission.admit(looks=looks)
        if desired == "running":
            workers = self._context.pool.count_serving(self._context.run_id, "rollout")
            await self._evaluator.advance(self._heads.version, workers)
            await self._dispatch_new(workers)
            await self._change_scorer()
            await self._repair()
        await self._checkpoints.archive()
        is_complete = self._is_complete()
        if looks or is_complete:
            status = await self._write_status(paused=desired == "paused")
            if self._trainer_watch.should_yield(self._reached, status.state):
                return _yielded(status)
        return await self._checkpoints.ending() if is_complete else None

    def _looks(self) -> bool:
        """Whether this pass looks at the workers and writes the status: a run may wake its loop a hundred times a second."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return False
        self._look_at = now + _TICK_SECONDS
        return True

    async def _over_quota(self) -> str:
        """Why the run holds too much of the buffer; empty if it does not."""
        return await self._buffer_quota.fault(self._pipeline.waiting_bytes + self._evaluator.waiting_bytes, self._journals)

    def _journals(self) -> list[str]:
        """Keys of the journals of the episodes that may be played."""
        return self._groups.journals(self._schedule.outstanding()) + self._evaluator.journals

    def _fault(self, desired: DesiredState) -> str:
        """Why the run cannot succeed; empty as long as it can."""
        if self._learning_signal.no_signal:
            return self._learning_signal.warning
        scoring = self._pipeline.scoring_fault or self._evaluator.scoring_fault
        reported = scoring or self._context.pool.run_fault(self._context.run_id)
        died = self._step_watch.fault(self._reached, has_work=desired == "running" and self._trainer_has_work())
        return reported or self._preparation.fault() or died

    def _trainer_has_work(self) -> bool:
        """Whether the log has all groups of the next step, or only the last checkpoint is missing."""
        if self._heads.version >= self._steps:
            return self._heads.checkpoint < self._steps
        return not self._schedule.is_incomplete(self._present_version)

    @property
    def _present_version(self) -> int:
        """The newest version that is published or in a trainer's hands: of a run on given responses not every one is published."""
        if not self._context.record.spec.trains_given:
            return self._heads.version
        return max([self._heads.version, *(trainer.version for trainer in self._context.pool.serving(self._context.run_id, "trainer"))])

    async def _recover(self) -> None:
        """Rebuilds the schedule from the log, and from the progress of the newest checkpoint or of a trainer that misses groups."""
        term = self._context.lease.term
        await self._log.open_term(term)
        await self._evaluator.recover()
        trained = self._missing_report or await self._checkpoints.progress()
        self._missing_report = None
        self._pipeline.forget(await recover_schedule(self._log, term, self._schedule, self._learning_signal, trained))

    def _register_outstanding(self) -> None:
        """Registers outstanding groups without publishing; an earlier conductor may have dispatched them.

        They are overdue at once: `_repair` looks for them among the workers' claims and in the buffer, and dispatches the rest. A new
        run's first groups go this way too.
        """
        if self._new_groups():
            self._is_registered, self._repair_at = True, 0.0

    async def _dispatch_new(self, workers: int) -> None:
        if not self._is_registered:
            self._register_outstanding()
        elif groups := self._new_groups():
            await self._pipeline.dispatch(groups, workers)

    async def _change_scorer(self) -> None:
        """Gives the run the scorers that its user asks for, from the next group on that is not dispatched.

        The rows of the next version may be dispatched already: they are judged as before, and so are all groups up to its step's.
        """
        wanted = self._context.runs.wanted_scorers(self._context.run_id)
        if not self._scorers.is_new(wanted):
            return
        head, first = self._heads.version, self._schedule.next_group
        if first == 0 and self._evaluator.newest is None and not self._evaluator.waiting_bytes:
            self._take(await self._scorers.decide(wanted, 0, 0))
        elif self._is_registered:
            first = max(first, (head + 2) * self._context.record.spec.schedule.groups_per_step)
            self._take(await self._scorers.decide(wanted, first, head + 2))

    def _take(self, changes: Iterable[RewardChange]) -> None:
        for change in changes:
            self._pipeline.change_scorer(change)
            self._evaluator.change_scorer(change)

    def _new_groups(self) -> dict[int, int]:
        """Groups that the newest version and its evaluation allow, index to version; the schedule counts them as outstanding then."""
        if self._heads.version < 0:
            return {}
        head, limit = self._heads.version, self._evaluator.trainable_steps
        if limit is not None:
            head = min(head, limit - self._context.record.spec.steps_ahead)
        return {item.index: item.version for item in self._schedule.dispatchable(head)}

    async def _repair(self) -> None:
        """At most once a tick: takes its share of the rollouts, replaces a lost trainer, dispatches overdue groups."""
        now = asyncio.get_running_loop().time()
        if now < self._repair_at:
            return
        self._repair_at = now + _TICK_SECONDS
        await self._context.pool.share_rollouts(self._context.run_id)
        await self._trainer_watch.replace_lost()
        rollouts = self._context.pool.serving(self._context.run_id, "rollout")
        await self._pipeline.dispatch_missing(self._schedule.outstanding(), rollouts)
        await self._evaluator.dispatch_missing(rollouts)

    async def _write_status(self, *, paused: bool) -> RunStatus:
        rollouts = self._context.pool.serving(self._context.run_id, "rollout")
        scoring_failure = self._pipeline.scoring_failure(_SCORING_GRACE_SECONDS) or self._evaluator.scoring_failure(_SCORING_GRACE_SECONDS)
        snapshot = RunSnapshot(
            version=self._heads.version,
            step=self._reached,
            checkpoint=self._heads.checkpoint,
            evaluation=self._evaluator.newest,
            warning=self._learning_signal.warning,
            scoring_seconds=self._pipeline.scoring_seconds,
            reference_seconds=self._pipeline.reference_seconds,
            response_tokens=self._pipeline.response_tokens,
            trainers=self._context.pool.serving(self._context.run_id, "trainer"),
            rollouts=rollouts,
        )
        state: RunState
        if paused:
            state, waiting_for = "paused", ""
        elif scoring_failure:
            state, waiting_for = "waiting_for_reward", scoring_failure
        elif environment_failure := self._stall.environment_failure(rollouts):
            state, waiting_for = "waiting_for_environment", environment_failure
        elif self._heads.version <= 0 and (first_call := self._first_answers.waiting_for(_FIRST_CALL_SECONDS)):
            state, waiting_for = "starting", first_call
        else:
            evaluating = self._heads.version >= self._steps
            state = "starting" if self._heads.version < 0 else "evaluating" if evaluating else "running"
            outstanding = self._schedule.outstanding()
            blockers = Blockers(snapshot.trainers, rollouts, outstanding, self._evaluator.running)
            waiting_for = self._stall.reason(self._present_version, len(outstanding), blockers)
        await self._context.status.write(state, snapshot, waiting_for)
        return self._context.status.status

    def _is_complete(self) -> bool:
        stored = min(self._heads.checkpoint, self._checkpoints.archived_step)
        return stored >= self._steps and self._evaluator.due() is None

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[None]:
        bus, run_id = self._context.clients.bus, self._context.run_id
        async with (
            bus.subscribed(subjects.groups(run_id), self._on_sampled),
            bus.subscribed(subjects.missing(run_id), self._on_missing),
        ):
            yield

    async def _on_sampled(self, payload: bytes) -> None:
        message = GroupsSampled.FromString(payload)
        if message.kind == TASK_KIND_TRAIN:
            self._pipeline.report_sampled(message.indexes)
        else:
            self._evaluator.report_sampled(message.version, message.indexes)
        self._wake.set()

    async def _on_missing(self, payload: bytes) -> None:
        """A trainer lacks groups of its step.

        If the trainer and the schedule disagree, the schedule is rebuilt from the trainer's frontier: the buffer may have lost
        entries of the log.
        """
        progress = TrainerProgress.FromString(payload)
        if progress.step < max(self._heads.checkpoint, self._checkpoints.archived_step):
            return  # the trainer is behind the newest checkpoint: it has been replaced
        if self._schedule.is_incomplete(progress.step, progress.frontier.below):
            return  # the groups are still outstanding, and recovery reads the whole log; a waiting trainer repeats its report
        self._missing_report = progress
        self._wake.set()


def _yielded(status: RunStatus) -> Ending:
    """How a run leaves its trainer to another one, in the state in which it came to rest."""
    if status.state == "paused":
        return Ending("paused")
    what = "environment" if status.state == "waiting_for_environment" else "rewards"
    return Ending("queued", f"it left its trainer to another run and queues again, because it waits for its {what}: {status.waiting_for}")
