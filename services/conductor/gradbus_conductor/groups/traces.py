"""The conductor's part of each group's trace: from dispatch to the log.

    group                        this file: from the first dispatch to the log
    ├─ send prompts.*            this file: one for each dispatch
    ├─ generate, ...             the rollout
    ├─ score ─ grade             this file, and the reward service below it
    ├─ reference                 this file
    ├─ admit                     this file
    └─ wait_in_log, train        the trainer

Run and index decide here, once, whether a group is traced. A group that is not traced records nothing, until its scoring
fails: from then on it is traced.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from opentelemetry.trace import SpanKind

from gradbus.telemetry import Attributes, TimedSpan, child_of, is_sampled, is_tracing, record, root_span
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import SampleReward
from gradbus.v1.task_pb2 import Task
from gradbus_conductor.groups.task_kinds import TRAINING, TaskSet

Service = Literal["score", "reference"]
_MAX_PARTS: Final = 64
"""Names of parts in a group's span: a scorer may name those of every sample differently, which would be millions of values."""


@dataclass(frozen=True, slots=True)
class _OpenTrace:
    root: str
    """Traceparent of the root span."""
    began: int
    """Nanoseconds since 1970."""


@dataclass(slots=True)
class ServiceCall:
    """The spans of one call that serves many groups."""

    spans: dict[int, str]
    """Index to the traceparent of the group's own span, for traced groups."""
    errors: dict[int, str] = field(default_factory=dict)
    """Index to why the call failed for the group."""
    results: dict[int, Attributes] = field(default_factory=dict)

    def failed(self, indexes: Iterable[int], reason: str) -> None:
        """The call failed for these groups; the first reason of a group counts."""
        for index in indexes:
            self.errors.setdefault(index, reason)

    def answered(self, index: int, rewards: Iterable[SampleReward]) -> None:
        """The call returned these rewards for a group."""
        if index in self.spans:
            self.results[index] = _rewards(rewards)


class GroupTraces:
    """Traces of one pipeline's groups. Costs nothing for a group that is not traced."""

    def __init__(self, run_id: str, share: float, tasks: TaskSet = TRAINING) -> None:
        self._run_id = run_id
        self._share = share if is_tracing() else 0.0
        self._tasks = tasks
        self._open: dict[int, _OpenTrace] = {}

    def begin(self, index: int, began: int) -> str:
        """Starts the trace of a group that is dispatched; returns its traceparent, empty if it is not traced."""
        if self._share and index not in self._open and is_sampled(root := self._root(index), self._share):
            self._open[index] = _OpenTrace(root, began)
        return self.traceparent(index)

    def traceparent(self, index: int) -> str:
        """Traceparent of an open trace, empty if the group is not traced."""
        return self._open[index].root if index in self._open else ""

    def dispatched(self, tasks: Iterable[Task], began: int) -> None:
        """Records that the queue has the tasks."""
        now = time.time_ns()
        for task in tasks:
            for group in task.groups:
                if group.traceparent:
                    record(TimedSpan("send prompts.*", began, now, group.traceparent, attributes=_message(task), kind=SpanKind.PRODUCER))

    def fetched(self, groups: Iterable[Group]) -> None:
        """Continues the traces of fetched groups that an earlier conductor dispatched."""
        for group in groups:
            if group.traceparent and group.index not in self._open and is_tracing():
                self._open[group.index] = _OpenTrace(group.traceparent, time.time_ns())

    @contextmanager
    def call(self, service: Service, indexes: Iterable[int]) -> Iterator[ServiceCall]:
        """Traces the call inside the block: a trace of its own, linked to a span in the trace of each group."""
        called = list(indexes)
        call = ServiceCall({index: child_of(self._open[index].root) for index in called if index in self._open})
        began = time.time_ns()
        attributes: Attributes = {"gradbus.run.id": self._run_id}
        try:
            with root_span(f"{service}_call", call.spans.values(), attributes) if call.spans else nullcontext():
                yield call
        except Exception as error:
            call.failed(called, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._record_call(service, call, began)

    def stamp(self, entries: Mapping[int, LogEntry]) -> None:
        """Writes the traceparents into entries that are about to be appended."""
        for index, entry in entries.items():
            entry.traceparent = self.traceparent(index)

    def admitted(self, entries: Iterable[LogEntry], began: int) -> None:
        """Ends the traces of entries that this conductor appended to the log."""
        for entry in entries:
            if entry.traceparent:
                record(TimedSpan("admit", began, parent=entry.traceparent, attributes={"gradbus.verdict": _verdict(entry)}))
                self._end(entry.index, _verdict(entry), entry.reason)

    def evaluated(self, entry: LogEntry) -> None:
        """Ends the trace of a held-out row, which goes into no log."""
        self._end(entry.index, "evaluated")

    def forget(self, indexes: Iterable[int]) -> None:
        """Drops the traces of groups that another conductor appended, which records their end."""
        for index in indexes:
            self._open.pop(index, None)

    def abandon(self, reason: str) -> None:
        """Ends all open traces, because the run ends."""
        for index in list(self._open):
            self._end(index, "abandoned", reason)

    def _record_call(self, service: Service, call: ServiceCall, began: int) -> None:
        now = time.time_ns()
        if is_tracing():
            for index in call.errors.keys() - call.spans.keys():
                call.spans[index] = child_of(self._open.setdefault(index, _OpenTrace(self._root(index), began)).root)
        for index, own in call.spans.items():
            error = call.errors.get(index, "")
            record(TimedSpan(service, began, now, self._root(index), own, call.results.get(index, {}), error=error))

    def _end(self, index: int, verdict: str, reason: str = "") -> None:
        opened = self._open.pop(index, None)
        if opened is None:
            return
        attributes: Attributes = {
            "gradbus.run.id": self._run_id,
            "gradbus.group.index": index,
            **self._tasks.trace_attributes,
            "gradbus.verdict": verdict,
            "gradbus.reason": reason,
        }
        record(TimedSpan("group", opened.began, own=opened.root, attributes=attributes))

    def _root(self, index: int) -> str:
        return self._tasks.trace(self._run_id, index)


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
    names = sorted(islice(dict.fromkeys(name for reward in known for name in reward.components), _MAX_PARTS))
    parts = {f"gradbus.reward.part.{name}": [reward.components.get(name, 0.0) for reward in known] for name in names}
    return {"gradbus.rewards": [reward.reward for reward in known], **parts}
