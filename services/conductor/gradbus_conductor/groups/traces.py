"""The traces of a run's groups, as far as the conductor sees them: from dispatch to the log.

    group                        this file: the whole, from the first dispatch to the log
    ├─ send prompts.*            this file: one each time it is dispatched
    ├─ generate, ...             the rollout
    ├─ score ─ grade             this file, and the reward service below it
    ├─ reference                 this file
    ├─ admit                     this file
    └─ wait_in_log, train        the trainer

Which groups are traced is decided here once, from run and index; the others leave nothing behind but a failure. A group
whose scoring failed is traced from there on, whatever was decided.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from opentelemetry.trace import SpanKind

from gradbus.telemetry import Attributes, TimedSpan, child_of, evaluation_trace, group_trace, is_sampled, is_tracing, record, root_span
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import SampleReward
from gradbus.v1.task_pb2 import Task

Service = Literal["score", "reference"]


@dataclass(frozen=True, slots=True)
class _Open:
    root: str
    began: int


@dataclass(slots=True)
class Call:
    """One call for many groups."""

    spans: dict[int, str]
    """Traceparent of each traced group's part in it."""
    faults: dict[int, str] = field(default_factory=dict)
    """Index to why the call did nothing for it."""
    results: dict[int, Attributes] = field(default_factory=dict)

    def failed(self, indexes: Iterable[int], reason: str) -> None:
        """These got nothing; the first reason counts."""
        for index in indexes:
            self.faults.setdefault(index, reason)

    def answered(self, index: int, rewards: Iterable[SampleReward]) -> None:
        """A group's rewards."""
        if index in self.spans:
            self.results[index] = _rewards(rewards)


class GroupTraces:
    """One run's training groups, or the rows of one evaluation. Costs nothing for a group that is not traced."""

    def __init__(self, run_id: str, share: float, evaluated: int | None = None) -> None:
        self._run_id = run_id
        self._share = share if is_tracing() else 0.0
        self._evaluated = evaluated
        self._open: dict[int, _Open] = {}

    def begin(self, index: int, began: int) -> str:
        """The group is dispatched: its traceparent, empty if it is not traced."""
        if self._share and index not in self._open and is_sampled(root := self._root(index), self._share):
            self._open[index] = _Open(root, began)
        return self.of(index)

    def of(self, index: int) -> str:
        """Traceparent of a group that is under way, empty if it is not traced."""
        return self._open[index].root if index in self._open else ""

    def sent(self, tasks: Iterable[Task], began: int) -> None:
        """The queue has the tasks."""
        now = time.time_ns()
        for task in tasks:
            for group in task.groups:
                if group.traceparent:
                    record(TimedSpan("send prompts.*", began, now, group.traceparent, attributes=_message(task), kind=SpanKind.PRODUCER))

    def found(self, groups: Iterable[Group]) -> None:
        """These came out of the buffer: those that an earlier conductor dispatched go on in their trace."""
        for group in groups:
            if group.traceparent and group.index not in self._open and is_tracing():
                self._open[group.index] = _Open(group.traceparent, time.time_ns())

    @contextmanager
    def call(self, service: Service, indexes: Iterable[int]) -> Iterator[Call]:
        """A call inside the block: a trace of its own, linked to each group's part in it."""
        asked = list(indexes)
        call = Call({index: child_of(self._open[index].root) for index in asked if index in self._open})
        began = time.time_ns()
        whole: Attributes = {"gradbus.run.id": self._run_id}
        try:
            with root_span(f"{service}_call", call.spans.values(), whole) if call.spans else nullcontext():
                yield call
        except Exception as error:
            call.failed(asked, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._tell(service, call, began)

    def stamp(self, entries: Mapping[int, LogEntry]) -> None:
        """Names the traces in entries that are about to be appended."""
        for index, entry in entries.items():
            entry.traceparent = self.of(index)

    def admitted(self, entries: Iterable[LogEntry], began: int) -> None:
        """The log has these, by this conductor's word: the end of what is seen here."""
        for entry in entries:
            if entry.traceparent:
                record(TimedSpan("admit", began, parent=entry.traceparent, attributes={"gradbus.verdict": _verdict(entry)}))
                self._end(entry.index, _verdict(entry), entry.reason)

    def judged(self, entry: LogEntry) -> None:
        """A held-out row has its result, and goes into no log."""
        self._end(entry.index, "evaluated")

    def forget(self, indexes: Iterable[int]) -> None:
        """These are in the log by another's word, who tells of them."""
        for index in indexes:
            self._open.pop(index, None)

    def abandon(self, reason: str) -> None:
        """The run ends without those that are under way."""
        for index in list(self._open):
            self._end(index, "abandoned", reason)

    def _tell(self, service: Service, call: Call, began: int) -> None:
        now = time.time_ns()
        if is_tracing():
            for index in call.faults.keys() - call.spans.keys():
                call.spans[index] = child_of(self._open.setdefault(index, _Open(self._root(index), began)).root)
        for index, own in call.spans.items():
            fault = call.faults.get(index, "")
            record(TimedSpan(service, began, now, self._root(index), own, call.results.get(index, {}), error=fault))

    def _end(self, index: int, verdict: str, reason: str = "") -> None:
        opened = self._open.pop(index, None)
        if opened is None:
            return
        place: Attributes = {"gradbus.run.id": self._run_id, "gradbus.group.index": index}
        if self._evaluated is not None:
            place = {**place, "gradbus.evaluation.version": self._evaluated}
        attributes: Attributes = {**place, "gradbus.verdict": verdict, "gradbus.reason": reason}
        record(TimedSpan("group", opened.began, own=opened.root, attributes=attributes))

    def _root(self, index: int) -> str:
        if self._evaluated is None:
            return group_trace(self._run_id, index)
        return evaluation_trace(self._run_id, self._evaluated, index)


def _message(task: Task) -> Attributes:
    return {
        "messaging.system": "nats",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.template": "prompts.*",
        "messaging.message.id": task.task_id,
        "messaging.batch.message_count": len(task.groups),
        "gradbus.policy.version": task.version,
    }


def _verdict(entry: LogEntry) -> str:
    return Verdict.Name(entry.verdict).removeprefix("VERDICT_").lower()


def _rewards(rewards: Iterable[SampleReward]) -> Attributes:
    """Each sample's reward and parts, in order of n."""
    known = list(rewards)
    names = sorted({name for reward in known for name in reward.components})
    parts = {f"gradbus.reward.part.{name}": [reward.components.get(name, 0.0) for reward in known] for name in names}
    return {"gradbus.rewards": [reward.reward for reward in known], **parts}
