"""Which log entries make a step. A function of the log alone: no clock, no arrival timing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import VERDICT_TRAIN, LogEntry
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.step.prepared_group import PreparedGroup


@dataclass(frozen=True, slots=True)
class Collected:
    """An entry with the digest of its record."""

    entry: LogEntry
    digest: str
    size_bytes: int
    prepared: PreparedGroup | None = None
    """The entry made ready ahead of its step, if it was."""
    written: int = 0
    """When the log took it, in nanoseconds since 1970, by the buffer's clock."""

    @property
    def trains(self) -> bool:
        """Whether the group takes part in the step."""
        return self.entry.verdict == VERDICT_TRAIN


class Collector(Protocol):
    """Takes entries in the order of the log and gives out steps."""

    @property
    def size(self) -> int:
        """Entries that no step has taken."""
        ...

    def add(self, item: Collected) -> None:
        """One more entry; one that was trained or is here already changes nothing."""
        ...

    def take(self, step: int) -> Sequence[Collected] | None:
        """Every entry that step `step` consumes, in order of index, or None while some are missing."""
        ...

    def lacking(self, step: int) -> str:
        """What `step` still waits for, in words."""
        ...


class FixedLagCollector:
    """Step s consumes groups [s*B, (s+1)*B), whatever their verdicts: a filtered group keeps its slot."""

    def __init__(self, spec: RunSpec, frontier: Frontier) -> None:
        self._size = spec.schedule.groups_per_step
        self._frontier = frontier
        self._items: dict[int, Collected] = {}

    @property
    def size(self) -> int:  # noqa: D102
        return len(self._items)

    def add(self, item: Collected) -> None:  # noqa: D102
        if item.entry.index not in self._frontier:
            self._items.setdefault(item.entry.index, item)

    def take(self, step: int) -> Sequence[Collected] | None:  # noqa: D102
        _forget_trained(self._items, self._frontier)
        wanted = range(step * self._size, (step + 1) * self._size)
        if not all(index in self._items for index in wanted):
            return None
        return [self._items.pop(index) for index in wanted]

    def lacking(self, step: int) -> str:  # noqa: D102
        missing = [index for index in range(step * self._size, (step + 1) * self._size) if index not in self._items]
        return f"{len(missing)} groups of step {step}, first {missing[:4]}" if missing else ""


class FreeCollector:
    """A step consumes the log up to its B-th trainable entry, with the filtered and dropped ones before it."""

    def __init__(self, spec: RunSpec, frontier: Frontier) -> None:
        self._size = spec.schedule.groups_per_step
        self._frontier = frontier
        self._items: dict[int, Collected] = {}

    @property
    def size(self) -> int:  # noqa: D102
        return len(self._items)

    def add(self, item: Collected) -> None:  # noqa: D102
        if item.entry.index not in self._frontier:
            self._items.setdefault(item.entry.index, item)

    def take(self, step: int) -> Sequence[Collected] | None:  # noqa: ARG002, D102
        _forget_trained(self._items, self._frontier)
        trainable = [index for index, item in self._items.items() if item.trains]
        if len(trainable) < self._size:
            return None
        last = trainable[self._size - 1]
        taken: list[Collected] = []
        for index in list(self._items):
            taken.append(self._items.pop(index))
            if index == last:
                break
        return sorted(taken, key=lambda item: item.entry.index)

    def lacking(self, step: int) -> str:  # noqa: D102
        there = sum(item.trains for item in self._items.values())
        return f"{self._size - there} of {self._size} groups of step {step}" if there < self._size else ""


def _forget_trained(items: dict[int, Collected], frontier: Frontier) -> None:
    """A log that is read again while a step is being trained gives that step's entries once more."""
    for index in [index for index in items if index in frontier]:
        del items[index]


def collector_for(spec: RunSpec, frontier: Frontier) -> Collector:
    """The collector of a spec's schedule."""
    return FixedLagCollector(spec, frontier) if spec.schedule.mode == "fixed_lag" else FreeCollector(spec, frontier)
