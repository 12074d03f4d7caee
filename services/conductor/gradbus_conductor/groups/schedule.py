"""The two schedules as state machines without any wire: what to dispatch, and what may enter the log now.

An index is dispatched, then sampled and judged (ready), then in the log. Staleness is kept here, by admission:
the trainer takes the log as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gradbus.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Sample group `index` with policy `version` (in `free`: or a newer one)."""

    index: int
    version: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A judged group that waits for its place in the log."""

    index: int
    version: int
    """Oldest version among its trainable spans."""
    trainable: bool
    """False for a filtered group, which takes no place in a `free` step."""


@dataclass(slots=True)
class Admission:
    """What to do with the groups at hand."""

    append: list[int] = field(default_factory=list)
    drop: dict[int, str] = field(default_factory=dict)
    """Index to reason."""


class Schedule(Protocol):
    """One run's schedule."""

    def recover(self, entries: Iterable[tuple[int, bool]], trained_below: int, trained_above: Iterable[int], step: int) -> None:
        """Starts, or starts again, from the log (index, trainable) and from what the trainer has trained by `step`."""
        ...

    def dispatchable(self, head: int) -> list[Dispatch]:
        """New groups that may be sampled now that version `head` is published; they count as dispatched."""
        ...

    def outstanding(self) -> dict[int, int]:
        """Index to version of every group dispatched and not yet in the log."""
        ...

    def admit(self, ready: Iterable[Ready], overdue: Iterable[int]) -> Admission:
        """Which ready groups enter the log now, and which overdue or stale ones are dropped."""
        ...

    def appended(self, index: int, trainable: bool) -> None:
        """The log holds `index`."""
        ...

    def owes(self, step: int) -> bool:
        """Whether the log cannot hold yet all that `step` trains."""
        ...


class FixedLag:
    """Step s trains groups [s*B, (s+1)*B), each sampled wholly by version max(0, s - k)."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._size = spec.schedule.groups_per_step
        self._next = 0
        self._outstanding: dict[int, int] = {}

    def version_of(self, index: int) -> int:
        """The only version that may sample `index`."""
        return self._spec.oldest_version(index // self._size)

    def recover(self, entries: Iterable[tuple[int, bool]], trained_below: int, trained_above: Iterable[int], step: int) -> None:  # noqa: ARG002, D102
        known = {index for index, _ in entries} | set(trained_above)
        self._next = max([self._next, trained_below, *(index + 1 for index in known)])
        self._outstanding = {index: self.version_of(index) for index in range(trained_below, self._next) if index not in known}

    def dispatchable(self, head: int) -> list[Dispatch]:  # noqa: D102
        # One step more than can be sampled at once: flow control only, the version in the task keeps the staleness.
        steps = min(self._spec.schedule.steps, head + self._spec.schedule.max_staleness + 2)
        new = [Dispatch(index, self.version_of(index)) for index in range(self._next, steps * self._size)]
        self._next += len(new)
        self._outstanding.update((item.index, item.version) for item in new)
        return new

    def outstanding(self) -> dict[int, int]:  # noqa: D102
        return self._outstanding

    def admit(self, ready: Iterable[Ready], overdue: Iterable[int]) -> Admission:  # noqa: ARG002, D102
        # Order does not matter to the trainer, and nothing is ever dropped: a late group is waited for.
        return Admission(append=[group.index for group in ready])

    def appended(self, index: int, trainable: bool) -> None:  # noqa: ARG002, D102
        self._outstanding.pop(index, None)

    def owes(self, step: int) -> bool:  # noqa: D102
        end = (step + 1) * self._size
        return self._next < end or any(index in self._outstanding for index in range(step * self._size, end))


class Free:
    """Groups train in the order they enter the log. Outstanding groups never exceed (k + 1) * B.

    Every trainable entry takes the next place of the log; place p belongs to step p // B. A group of version v
    may take the places below (v + k + 1) * B: behind them it would be too stale.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._size = spec.schedule.groups_per_step
        self._lag = spec.schedule.max_staleness
        self._total = spec.total_groups
        self._next = 0
        self._outstanding: dict[int, int] = {}
        self._place = 0
        self._settled = 0
        self._head = 0

    def recover(self, entries: Iterable[tuple[int, bool]], trained_below: int, trained_above: Iterable[int], step: int) -> None:  # noqa: D102
        above = set(trained_above)
        new = {index: trainable for index, trainable in entries if index >= trained_below and index not in above}
        known = above | set(new)
        self._head = max(self._head, step)
        self._place = step * self._size + sum(new.values())
        self._next = max([self._next, trained_below, *(index + 1 for index in known)])
        self._settled = trained_below + len(known) - self._place
        # Versions that an earlier conductor knew died with it: those groups are sampled again by the newest.
        kept = self._outstanding
        self._outstanding = {index: kept.get(index, self._head) for index in range(trained_below, self._next) if index not in known}

    def dispatchable(self, head: int) -> list[Dispatch]:  # noqa: D102
        self._head = max(self._head, head)
        unfinished = self._next - self._head * self._size - self._settled
        needed = self._total - self._place - len(self._outstanding)
        room = max(0, min((self._lag + 1) * self._size - unfinished, needed))
        new = [Dispatch(index, self._head) for index in range(self._next, self._next + room)]
        self._next += room
        self._outstanding.update((item.index, item.version) for item in new)
        return new

    def outstanding(self) -> dict[int, int]:  # noqa: D102
        return self._outstanding

    def admit(self, ready: Iterable[Ready], overdue: Iterable[int]) -> Admission:
        """Oldest version first. A younger group waits where it would take the last place that an expected older one may have."""
        at_hand = sorted(ready, key=lambda group: (group.version, group.index))
        missing = self._outstanding.keys() - {group.index for group in at_hand}
        late = missing & set(overdue)
        expected = Counter(self._outstanding[index] for index in missing - late)
        result = Admission()
        place = self._place
        for group in at_hand:
            if not group.trainable:
                result.append.append(group.index)
            elif place >= self._total:
                result.drop[group.index] = "end of run"
            elif place >= self._places(group.version):
                result.drop[group.index] = "stale"
            elif place < self._limit(group.version, expected):
                result.append.append(group.index)
                place += 1
        if place < self._total:
            result.drop |= dict.fromkeys(self._in_the_way(late, place, expected.total()), "deadline")
        return result

    def appended(self, index: int, trainable: bool) -> None:  # noqa: D102
        if self._outstanding.pop(index, None) is not None:
            self._place += trainable
            self._settled += not trainable

    def owes(self, step: int) -> bool:  # noqa: D102
        return self._place < (step + 1) * self._size

    def _places(self, version: int) -> int:
        """Places that a group of `version` may take: all below this one."""
        return (version + self._lag + 1) * self._size

    def _limit(self, version: int, expected: Mapping[int, int]) -> int:
        """Places left to groups of `version` once each expected older group keeps one that it may take."""
        limit, older = self._total, 0
        for other in sorted(other for other in expected if other < version and self._places(other) > self._place):
            older += expected[other]
            limit = min(limit, self._places(other) - older)
        return limit

    def _in_the_way(self, late: Iterable[int], place: int, expected: int) -> list[int]:
        """Late groups to give up: those whose last step is being filled, and what that step cannot be filled without."""
        end = (place // self._size + 1) * self._size
        lacking = end - place - expected
        oldest_first = sorted(late, key=lambda index: (self._outstanding[index], index))
        return [index for rank, index in enumerate(oldest_first) if rank < lacking or self._places(self._outstanding[index]) <= end]


def schedule_for(spec: RunSpec) -> Schedule:
    """The schedule that a spec asks for."""
    return FixedLag(spec) if spec.schedule.mode == "fixed_lag" else Free(spec)
