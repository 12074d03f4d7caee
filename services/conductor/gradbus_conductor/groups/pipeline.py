"""The way of a group before the log: dispatched, sampled into the buffer, judged. Training and each evaluation have a pipeline.

The pipeline does not depend on messages: a group whose message was lost becomes overdue, and an overdue group is looked
for in the buffer before it is dispatched again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace

from gradbus.bus import TaskQueue
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.experience import GroupStore
from gradbus.spec import RewardChange
from gradbus.telemetry import Metrics, get_logger
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus_conductor.clients import Clients
from gradbus_conductor.groups.dataset import Items
from gradbus_conductor.groups.dispatch import Dispatcher
from gradbus_conductor.groups.first_answers import FirstAnswers
from gradbus_conductor.groups.scoring import Scoring
from gradbus_conductor.groups.task_kinds import TRAINING, TaskSet
from gradbus_conductor.groups.traces import GroupTraces

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """The work of a pipeline."""

    record: RunRecord
    items: Items
    """Dataset rows as JSON."""
    row: Callable[[int], int]
    """Index to row."""
    tasks: TaskSet = TRAINING
    first_answers: FirstAnswers = field(default_factory=FirstAnswers)


@dataclass(frozen=True, slots=True)
class _Fetched:
    version: int
    """The oldest policy version among the group's trainable spans."""
    size_bytes: int


class GroupPipeline:
    """Dispatches groups, finds them in the buffer, and has them judged."""

    def __init__(self, clients: Clients, config: PipelineConfig, queue: TaskQueue, wake: asyncio.Event) -> None:
        run_id = config.record.run_id
        self._config = config
        self._wake = wake
        self._store = GroupStore(clients.buffer, run_id, journaled=config.record.spec.may_have_journal)
        self.traces = GroupTraces(run_id, clients.trace_groups, config.tasks)
        self._dispatcher = Dispatcher(queue, run_id, self.traces, config.tasks)
        self._scoring = Scoring(clients, run_id, config.record.spec, self.traces, self._on_judged, config.tasks)
        self._scoring.state.first_answers = config.first_answers
        self._reported: set[int] = set()
        self._fetched: dict[int, _Fetched] = {}
        self.judged: dict[int, LogEntry] = {}
        """Judged groups by index, until they are forgotten."""
        self.response_tokens = 0
        """Response tokens of all groups fetched."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the groups that were fetched from the buffer and are still there."""
        return sum(group.size_bytes for group in self._fetched.values())

    @property
    def scoring_seconds(self) -> float:
        """Time in which at least one call of the scorer was in flight."""
        return self._scoring.state.scored.total()

    @property
    def reference_seconds(self) -> float:
        """Time in which at least one call of the reference was in flight."""
        return self._scoring.state.referenced.total()

    def change_scorer(self, change: RewardChange) -> None:
        """From a group on another scorer judges; none of its groups was dispatched yet."""
        self._scoring.change_scorer(change)

    def export_metrics(self, metrics: Metrics, outstanding: Callable[[], Sized]) -> None:
        """Exports how many groups wait, by stage, and the time spent scoring. The values are computed when they are read."""
        state = self._scoring.state
        stages: dict[str, Callable[[], float]] = {
            "sampling": lambda: max(0, len(outstanding()) - len(self._fetched)),
            "judging": lambda: max(0, len(self._fetched) - len(self.judged)),
            "admission": lambda: len(self.judged),
        }
        metrics.replace("gradbus.groups.waiting", "gradbus.stage", stages)
        metrics.set("gradbus.groups.unscored", lambda: len(state.failing))
        metrics.replace("gradbus.run.time", "gradbus.phase", {"score": state.scored.total, "reference": state.referenced.total})

    async def dispatch(self, groups: Mapping[int, int], workers: int) -> None:
        """Dispatches groups: index to version."""
        await self._dispatcher.dispatch([(index, version, self._config.row(index)) for index, version in groups.items()], workers)

    def report_sampled(self, indexes: Iterable[int]) -> None:
        """A worker reports that these groups are in the buffer."""
        self._reported.update(indexes)
        self._wake.set()

    async def collect(self, wanted: Mapping[int, int]) -> None:
        """Fetches reported groups that are wanted (index to version) from the buffer and submits them for scoring."""
        new = [index for index in self._reported if index in wanted and index not in self._fetched]
        unwanted = [index for index in self._reported if index not in wanted]
        self._reported.clear()
        await self._fetch(new)
        if unwanted:
            await self._config.tasks.discard_unwanted(self._store, unwanted)

    async def dispatch_missing(self, wanted: Mapping[int, int], workers: Sequence[WorkerPresence]) -> None:
        """Dispatches overdue groups that are not in the buffer: lost groups again, registered groups for the first time."""
        not_fetched = {index: version for index, version in wanted.items() if index not in self._fetched}
        overdue = self._dispatcher.overdue(not_fetched, workers)
        if not overdue:
            return
        found = await self._fetch(overdue)
        lost = [index for index in overdue if index not in found]
        await self._dispatcher.redispatch(lost, not_fetched, {index: self._config.row(index) for index in lost}, len(workers))

    def group_version(self, index: int) -> int:
        """The oldest policy version among the trainable spans of a group that was fetched from the buffer."""
        return self._fetched[index].version

    def older_than(self, seconds: float, indexes: Iterable[int]) -> list[int]:
        """The groups of `indexes` whose age, from their first dispatch, exceeds `seconds`."""
        return [index for index in indexes if self._dispatcher.age(index) > seconds]

    def scoring_failure(self, seconds: float) -> str:
        """Why scoring fails, if it does for a group older than `seconds`; else empty."""
        reasons = self._scoring.state.failing
        return next(iter(reasons.values()), "") if self.older_than(seconds, reasons) else ""

    @property
    def scoring_fault(self) -> str:
        """Why the run must end: a sample can never be scored. Empty while there is hope."""
        return self._scoring.state.fault

    def reset_age(self, indexes: Iterable[int]) -> None:
        """Starts the age of these groups anew, because the run is paused."""
        self._dispatcher.reset_age(indexes)

    def forget(self, indexes: Collection[int]) -> None:
        """Drops all state of groups that are in the log or no longer wanted."""
        for index in indexes:
            self.judged.pop(index, None)
            self._fetched.pop(index, None)
        self._scoring.forget(indexes)
        self._dispatcher.forget(indexes)
        self.traces.forget(indexes)

    async def close(self) -> None:
        """Stops scoring."""
        await self._scoring.close()

    async def _fetch(self, indexes: Sequence[int]) -> set[int]:
        """Takes the groups that the buffer holds and submits them for scoring; returns their indexes."""
        if not indexes:
            return set()
        tasks = self._config.tasks
        found = await tasks.get(self._store, indexes)
        if mismatched := [index for index, group in found.items() if not self._matches_task(index, group)]:
            _log.warning("mismatched_groups_removed", run_id=self._config.record.run_id, indexes=mismatched)
            await tasks.discard(self._store, mismatched)
            found = {index: group for index, group in found.items() if index not in mismatched}
        self.traces.fetched(found.values())
        for pending in self._scoring.submit((group, self._config.items[group.row]) for group in found.values()):
            self._fetched[pending.index] = _Fetched(pending.oldest_version, pending.group.ByteSize())
            self.response_tokens += pending.tokens
        return set(found)

    def _matches_task(self, index: int, group: Group) -> bool:
        """A group of another row would be judged by the wrong answer."""
        return (group.run_id, group.index, group.row) == (self._config.record.run_id, index, self._config.row(index))

    def _on_judged(self, entry: LogEntry) -> None:
        self.judged[entry.index] = entry
        if (entry.teacher_rows or entry.behaviour_rows) and (fetched := self._fetched.get(entry.index)) is not None:
            self._fetched[entry.index] = replace(fetched, size_bytes=entry.ByteSize())
        if not self._config.tasks.is_logged:
            self.traces.evaluated(entry)
        self._wake.set()
