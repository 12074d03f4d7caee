"""Assigns log entries to steps. A function of the log alone: no clock, no arrival timing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Protocol

from gradbus.experience.dynamic_sampling import DynamicSampling
from gradbus.spec import RunSpec
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.step.groups import LoggedGroup


class Collector(Protocol):
    """Takes groups in the order of the log and returns those of a step."""

    @property
    def size(self) -> int:
        """Groups that no step has taken."""
        ...

    def add(self, item: LoggedGroup) -> None:
        """Adds a group; a group that was trained or is here already changes nothing."""
        ...

    def take(self, step: int) -> Sequence[LoggedGroup] | None:
        """Every group that step `step` consumes, in order of index, or None while some are missing."""
        ...

    def lacking(self, step: int) -> str:
        """The groups that `step` still waits for, as text; empty if there are none."""
        ...


class _WaitingGroups:
    """The groups that no step has taken, by index in the order of the log."""

    def __init__(self, spec: RunSpec, frontier: Frontier) -> None:
        self._size = spec.schedule.groups_per_step
        self._frontier = frontier
        self._items: dict[int, LoggedGroup] = {}

    @property
    def size(self) -> int:
        return len(self._items)

    def add(self, item: LoggedGroup) -> None:
        if item.entry.index not in self._frontier:
            self._items.setdefault(item.entry.index, item)

    def _remove_trained(self) -> None:
        """Removes groups of a step that was being trained while the log was read again."""
        for index in [index for index in self._items if index in self._frontier]:
            del self._items[index]


class FixedLagCollector(_WaitingGroups):
    """Step s consumes groups [s*B, (s+1)*B), whatever their verdicts: a filtered group keeps its slot."""

    def take(self, step: int) -> Sequence[LoggedGroup] | None:  # noqa: D102
        self._remove_trained()
        wanted = range(step * self._size, (step + 1) * self._size)
        if not all(index in self._items for index in wanted):
            return None
        return [self._items.pop(index) for index in wanted]

    def lacking(self, step: int) -> str:  # noqa: D102
        missing = [index for index in range(step * self._size, (step + 1) * self._size) if index not in self._items]
        return f"{len(missing)} groups of step {step}, first {missing[:4]}" if missing else ""


class DynamicCollector(_WaitingGroups):
    """Step s consumes the groups from the frontier on that `DynamicSampling` gives it, in order of index."""

    def __init__(self, spec: RunSpec, frontier: Frontier, rules: DynamicSampling) -> None:
        super().__init__(spec, frontier)
        self._rules = rules

    def take(self, step: int) -> Sequence[LoggedGroup] | None:  # noqa: ARG002, D102
        self._remove_trained()
        start = self._frontier.below
        if (taken := self._rules.taken([item.trains for item in self._consecutive(start)])) is None:
            return None
        return [self._items.pop(index) for index in range(start, start + taken)]

    def lacking(self, step: int) -> str:  # noqa: D102
        start = self._frontier.below
        there = list(self._consecutive(start))
        if self._rules.taken([item.trains for item in there]) is not None:
            return ""
        return f"{self._size - sum(item.trains for item in there)} of {self._size} groups of step {step}, first group {start + len(there)}"

    def _consecutive(self, start: int) -> Iterator[LoggedGroup]:
        """The groups from `start` on, up to the first that is missing."""
        for index in count(start):
            if index not in self._items:
                return
            yield self._items[index]


class FreeCollector(_WaitingGroups):
    """A step consumes the log up to its B-th trainable entry, with the filtered and dropped ones before it."""

    def take(self, step: int) -> Sequence[LoggedGroup] | None:  # noqa: ARG002, D102
        self._remove_trained()
        trainable = [index for index, item in self._items.items() if item.trains]
        if len(trainable) < self._size:
            return None
        last = trainable[self._size - 1]
        taken: list[LoggedGroup] = []
        for index in list(self._items):
            taken.append(self._items.pop(index))
            if index == last:
                break
        return sorted(taken, key=lambda item: item.entry.index)

    def lacking(self, step: int) -> str:  # noqa: D102
        there = sum(item.trains for item in self._items.values())
        return f"{self._size - there} of {self._size} groups of step {step}" if there < self._size else ""


def collector_for(spec: RunSpec, frontier: Frontier) -> Collector:
    """The collector for the schedule of `spec`."""
    if spec.schedule.mode == "free":
        return FreeCollector(spec, frontier)
    rules = DynamicSampling.of(spec.schedule)
    return FixedLagCollector(spec, frontier) if rules is None else DynamicCollector(spec, frontier, rules)
