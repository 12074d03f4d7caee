"""Which step trains each group, told by the log alone: the trainer's collectors make the same steps of the same entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gradbus.experience.dynamic_sampling import DynamicSampling
from gradbus.spec import ScheduleSpec


class StepTeller(Protocol):
    """Is told the groups of one run in the order of its log, each index once."""

    def add(self, index: int, trains: bool) -> Iterator[tuple[int, int]]:
        """The (index, step) pairs that are known now and were not before; `trains`: the group's verdict. Use up the iterator."""
        ...


class _FixedLag:
    """Step s takes groups [s * B, (s + 1) * B)."""

    def __init__(self, size: int) -> None:
        self._size = size

    def add(self, index: int, trains: bool) -> Iterator[tuple[int, int]]:  # noqa: ARG002
        yield index, index // self._size


class _Free:
    """A step takes the log up to its B-th trainable entry."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._trained = 0

    def add(self, index: int, trains: bool) -> Iterator[tuple[int, int]]:
        step = self._trained // self._size
        self._trained += trains
        yield index, step


class _Dynamic:
    """A step takes the groups from the end of the step before it that `DynamicSampling` gives it, in order of index."""

    def __init__(self, rules: DynamicSampling) -> None:
        self._rules = rules
        self._waiting: dict[int, bool] = {}
        self._verdicts: list[bool] = []
        """Of consecutive groups from `_start` on."""
        self._start = 0
        self._step = 0

    def add(self, index: int, trains: bool) -> Iterator[tuple[int, int]]:
        self._waiting[index] = trains
        while (following := self._start + len(self._verdicts)) in self._waiting:
            self._verdicts.append(self._waiting.pop(following))
            if (taken := self._rules.taken(self._verdicts)) is not None:
                yield from ((at, self._step) for at in range(self._start, self._start + taken))
                self._start, self._step, self._verdicts = self._start + taken, self._step + 1, []


def step_teller(schedule: ScheduleSpec) -> StepTeller:
    """For the log of a run with this schedule, from its first entry on."""
    if schedule.mode == "free":
        return _Free(schedule.groups_per_step)
    rules = DynamicSampling.of(schedule)
    return _FixedLag(schedule.groups_per_step) if rules is None else _Dynamic(rules)
