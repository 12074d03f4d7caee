"""Judged groups enter the experience log, as far as the schedule admits them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gradbus import crash_points
from gradbus.algorithms import algorithm_of
from gradbus.experience import ExperienceLog
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_TRAIN, LogEntry
from gradbus_conductor.groups.pipeline import GroupPipeline
from gradbus_conductor.run.context import RunContext
from gradbus_conductor.run.learning_signal import LearningSignal
from gradbus_conductor.schedules.base import Ready, Schedule


class GroupAdmission:
    """Appends to the log what the schedule admits; a group that is dropped is logged too, with the reason."""

    def __init__(
        self, context: RunContext, log: ExperienceLog, schedule: Schedule, pipeline: GroupPipeline, learning_signal: LearningSignal
    ) -> None:
        self._context = context
        self._algorithm = algorithm_of(context.record.spec)
        self._log = log
        self._schedule = schedule
        self._pipeline = pipeline
        self._learning_signal = learning_signal

    async def admit(self, *, looks: bool = True) -> None:
        """Asks the schedule about all judged groups, and logs its decisions; about overdue groups only if this pass `looks` at them.

        To go through all outstanding groups at each of a hundred wake-ups a second would be most of the work of a large run.
        """
        judged = self._pipeline.judged
        if not judged and not looks:
            return
        outstanding = self._schedule.outstanding()
        ready = [self._ready(entry) for index, entry in judged.items() if index in outstanding]
        decision = self._schedule.admit(ready, self._overdue(outstanding) if looks else ())
        entries = {index: judged[index] for index in decision.append}
        entries |= {index: self._dropped_entry(index, reason) for index, reason in decision.drop.items()}
        if entries:
            await self._append(entries)
            crash_points.reached("after-append")
            self._context.status.count(entries.values(), self._algorithm, self._context.record.spec.rollout.group_size)
            for index, entry in entries.items():
                self._schedule.appended(index, entry.verdict == VERDICT_TRAIN)
                self._learning_signal.add(entry)
        unwanted = [index for index in judged if index not in outstanding and index not in entries]
        self._pipeline.forget([*entries, *unwanted])

    def _overdue(self, outstanding: Mapping[int, int]) -> list[int]:
        if self._context.status.paused:
            self._pipeline.reset_age(outstanding)
        return self._pipeline.older_than(self._context.record.spec.schedule.group_deadline_seconds, outstanding)

    async def drop_outstanding(self, reason: str) -> None:
        """Logs every outstanding group as dropped."""
        outstanding = list(self._schedule.outstanding())
        await self._append({index: self._dropped_entry(index, reason) for index in outstanding})
        for index in outstanding:
            self._schedule.appended(index, False)

    async def _append(self, entries: Mapping[int, LogEntry]) -> None:
        began = time.time_ns()
        self._pipeline.traces.stamp(entries)
        accepted = await self._log.append(self._context.lease.term, entries)
        self._pipeline.traces.admitted([entries[index] for index in accepted], began)

    def _ready(self, entry: LogEntry) -> Ready:
        return Ready(entry.index, self._pipeline.group_version(entry.index), entry.verdict == VERDICT_TRAIN)

    def _dropped_entry(self, index: int, reason: str) -> LogEntry:
        entry = LogEntry(index=index, verdict=VERDICT_DROPPED, reason=reason, version=self._schedule.outstanding()[index])
        if (judged := self._pipeline.judged.get(index)) is not None:
            entry.group = judged.group
            entry.rewards.extend(judged.rewards)
        event = f"group {index} was dropped: {reason}"
        self._context.status.events.emit("dropped", event, {"index": index, "reason": reason}, "warning")
        return entry
