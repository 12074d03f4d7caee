"""`free`: a limit on outstanding groups and a check before the log bound the staleness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_conductor.schedules.base import AdmissionDecision, Dispatch, Ready


class Free:
    """Groups train in the order they enter the log. Outstanding groups never exceed (k + 1) * B.

    Every trainable entry takes the next position of the log; position p belongs to step p // B. A group of version v
    may take the positions below (v + k + 1) * B: from there on it would be too stale.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._size = spec.schedule.groups_per_step
        self._max_staleness = spec.schedule.max_staleness
        self._total = spec.total_groups
        self._next = 0
        self._outstanding: dict[int, int] = {}
        self._position = 0
        self._untrained = 0
        self._head = 0

    def recover(self, entries: Iterable[tuple[int, bool]], trained: TrainerProgress) -> None:  # noqa: D102
        below, above = trained.frontier.below, set(trained.frontier.above)
        new = {index: trainable for index, trainable in entries if index >= below and index not in above}
        known = above | set(new)
        self._head = max(self._head, trained.step)
        self._position = trained.step * self._size + sum(new.values())
        self._next = max([self._next, below, *(index + 1 for index in known)])
        self._untrained = below + len(known) - self._position
        # The versions of groups that an earlier conductor dispatched are unknown: the newest version samples them again.
        kept = self._outstanding
        self._outstanding = {index: kept.get(index, self._head) for index in range(below, self._next) if index not in known}

    def dispatchable(self, head: int) -> list[Dispatch]:  # noqa: D102
        self._head = max(self._head, head)
        unfinished = self._next - self._head * self._size - self._untrained
        needed = self._total - self._position - len(self._outstanding)
        room = max(0, min((self._max_staleness + 1) * self._size - unfinished, needed))
        new = [Dispatch(index, self._head) for index in range(self._next, self._next + room)]
        self._next += room
        self._outstanding.update((item.index, item.version) for item in new)
        return new

    @property
    def next_group(self) -> int:  # noqa: D102
        return self._next

    def outstanding(self) -> dict[int, int]:  # noqa: D102
        return self._outstanding

    def admit(self, ready: Iterable[Ready], overdue: Iterable[int]) -> AdmissionDecision:
        """Oldest version first. A newer group waits rather than take the last position that an expected older group may take."""
        at_hand = sorted(ready, key=lambda group: (group.version, group.index))
        missing = self._outstanding.keys() - {group.index for group in at_hand}
        late = missing & set(overdue)
        expected = Counter(self._outstanding[index] for index in missing - late)
        result = AdmissionDecision()
        position = self._position
        for group in at_hand:
            if not group.trainable:
                result.append.append(group.index)
            elif position >= self._total:
                result.drop[group.index] = "end of run"
            elif position >= self._position_bound(group.version):
                result.drop[group.index] = "stale"
            elif position < self._bound_behind_older(group.version, expected):
                result.append.append(group.index)
                position += 1
        if position < self._total:
            result.drop |= dict.fromkeys(self._to_drop(late, position, expected.total()), "deadline")
        return result

    def appended(self, index: int, trainable: bool) -> None:  # noqa: D102
        if self._outstanding.pop(index, None) is not None:
            self._position += trainable
            self._untrained += not trainable

    def is_incomplete(self, step: int, below: int = 0) -> bool:  # noqa: ARG002, D102
        return self._position < (step + 1) * self._size

    def _position_bound(self, version: int) -> int:
        """A group of `version` may take the positions below this one."""
        return (version + self._max_staleness + 1) * self._size

    def _bound_behind_older(self, version: int, expected: Mapping[int, int]) -> int:
        """Highest position for a newer group that still leaves one for each older group not yet judged."""
        limit, older = self._total, 0
        for other in sorted(other for other in expected if other < version and self._position_bound(other) > self._position):
            older += expected[other]
            limit = min(limit, self._position_bound(other) - older)
        return limit

    def _to_drop(self, late: Iterable[int], position: int, expected: int) -> list[int]:
        """Late groups to drop: those that may train in no later step, and as many as the current step lacks."""
        end = (position // self._size + 1) * self._size
        lacking = end - position - expected
        oldest_first = sorted(late, key=lambda index: (self._outstanding[index], index))
        return [index for rank, index in enumerate(oldest_first) if rank < lacking or self._position_bound(self._outstanding[index]) <= end]
