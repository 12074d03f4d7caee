"""The trace of each step, and the last spans of the traces of the groups it trains.

train_step                   from the wait for its groups to the hand-over of its version
├─ read                      with links to the groups' traces, 128 a span
├─ forward, backward, ...    the learner's phases
├─ export
├─ publish_version           behind the next step; the weight store and every worker's load_weights below it
└─ checkpoint                if one is due, behind the next steps
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

from gradbus.telemetry import (
    MAX_LINKS,
    Attributes,
    TimedSpan,
    is_sampled,
    is_tracing,
    record,
    start_trace,
    step_trace,
    under,
)
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.step.groups import LoggedGroup

_Kind = Literal["train_step", "trainer_start"]


@dataclass(slots=True)
class StepSampler:
    """Selects the steps that are traced: a share of them, `seconds` apart at least.

    A step that trains a traced group is traced whatever the time, so that the group's trace leads to a step's trace.
    """

    share: float = 1.0
    seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _last: float = float("-inf")

    def wants(self, root: str, trains_traced: bool) -> bool:
        """Whether the step with traceparent `root` is traced, now that its groups are known."""
        now = self.clock()
        is_due = trains_traced or now - self._last >= self.seconds
        if not (is_due and is_tracing() and is_sampled(root, self.share)):
            return False
        self._last = now
        return True


class StepTrace:
    """One step, traced or not; each mark reads the clock and nothing else."""

    def __init__(self, root: str, common: Attributes, sampler: StepSampler) -> None:
        """`root`: the step's traceparent, if it is traced."""
        self._root = root
        self._common = common
        self._sampler = sampler
        self._is_traced = False
        self._items: Sequence[LoggedGroup] = ()
        self._metrics: StepMetrics | None = None
        self._began = time.time_ns()
        self._read = self._trained = self._exported = 0

    def training(self, items: Sequence[LoggedGroup]) -> AbstractContextManager[None]:
        """The step's groups have arrived. If the step is traced, the block's spans are its children."""
        self._items, self._read = items, time.time_ns()
        self._is_traced = self._sampler.wants(self._root, any(item.entry.traceparent for item in items))
        return under(self._root if self._is_traced else "")

    def trained(self, metrics: StepMetrics) -> None:
        """The learner has finished."""
        self._metrics, self._trained = metrics, time.time_ns()

    def exported(self) -> None:
        """The version is written to a file."""
        self._exported = time.time_ns()

    def finish(self, name: _Kind, error: str = "") -> None:
        """Records the spans."""
        now = time.time_ns()
        groups = [item for item in self._items if item.entry.traceparent]
        if self._trained:
            for item in groups:
                self._record_group(item)
        if not (self._is_traced or error):
            return
        sizes = {"gradbus.groups": len(self._items), "gradbus.groups.linked": len(groups)} if self._items else {}
        record(TimedSpan(name, self._began, now, own=self._root, attributes={**self._common, **sizes}, error=error))
        if self._items:
            links = [item.entry.traceparent for item in groups]
            for at in range(0, max(1, len(links)), MAX_LINKS):
                record(TimedSpan("read", self._began, self._read, self._root, links=links[at : at + MAX_LINKS]))
        for phase in self._metrics.phases if self._metrics else ():
            record(TimedSpan(phase.name, phase.began, phase.ended, self._root))
        if self._exported:
            record(TimedSpan("export", self._trained or self._began, self._exported, self._root))

    def _record_group(self, item: LoggedGroup) -> None:
        links = [self._root] if self._is_traced else []
        written, parent = min(item.written, self._read) or self._read, item.entry.traceparent
        record(TimedSpan("wait_in_log", written, self._read, parent, attributes=self._common, links=links))
        if item.trains:
            record(TimedSpan("train", self._read, self._trained, parent, attributes=self._common, links=links))


class StepTraces:
    """Traces of a run's steps under one term."""

    def __init__(self, run_id: str, term: int, sampler: StepSampler) -> None:
        self._run_id = run_id
        self._term = term
        self._sampler = sampler

    @contextmanager
    def step(self, step: int) -> Iterator[StepTrace]:
        """Traces the step inside the block."""
        with self._recorded("train_step", step_trace(self._run_id, step, self._term), step, self._sampler) as trace:
            yield trace

    @contextmanager
    def start(self, step: int) -> Iterator[None]:
        """Traces the start at `step` inside the block, in which the restored version is published again."""
        with self._recorded("trainer_start", start_trace(self._run_id, step, self._term), step, StepSampler()) as trace, trace.training(()):
            yield

    @contextmanager
    def _recorded(self, name: _Kind, root: str, step: int, sampler: StepSampler) -> Iterator[StepTrace]:
        common: Attributes = {"gradbus.run.id": self._run_id, "gradbus.step": step, "gradbus.term": self._term}
        trace = StepTrace(root, common, sampler)
        try:
            yield trace
        except Exception as error:
            trace.finish(name, f"{type(error).__name__}: {error}")
            raise
        trace.finish(name)
