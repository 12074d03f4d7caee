"""The schedules as pure state machines: what to dispatch, and what may enter the log now.

An index is dispatched, then sampled and judged (ready), then in the log. The trainer takes the log as it is, so the schedule
bounds staleness: `FixedLag` by the version in the task, `Free` by a limit on outstanding groups and by a check before the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gradbus.v1.weights_pb2 import TrainerProgress


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Sample group `index` with policy `version` (in `free`: or a newer one)."""

    index: int
    version: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A judged group that waits for admission to the log."""

    index: int
    version: int
    """Oldest version among its trainable spans."""
    trainable: bool
    """False for a filtered group, which takes no position in a `free` step."""


@dataclass(slots=True)
class AdmissionDecision:
    """A decision on the ready and overdue groups."""

    append: list[int] = field(default_factory=list)
    drop: dict[int, str] = field(default_factory=dict)
    """Index to reason."""


class Schedule(Protocol):
    """One run's schedule."""

    def recover(self, entries: Iterable[tuple[int, bool]], trained: TrainerProgress) -> None:
        """Sets the state from the log (index, trainable) and from what the trainer has trained."""
        ...

    def dispatchable(self, head: int) -> list[Dispatch]:
        """New groups that may be sampled now that version `head` is published; they count as dispatched."""
        ...

    @property
    def next_group(self) -> int:
        """The first group that was not dispatched yet."""
        ...

    def outstanding(self) -> dict[int, int]:
        """Index to version of every group dispatched and not yet in the log."""
        ...

    def admit(self, ready: Iterable[Ready], overdue: Iterable[int]) -> AdmissionDecision:
        """Decides which ready groups enter the log now, and which overdue or stale groups are dropped."""
        ...

    def appended(self, index: int, trainable: bool) -> None:
        """Takes a group that was appended to the log off the outstanding ones."""
        ...

    def is_incomplete(self, step: int, below: int = 0) -> bool:
        """Whether groups that `step` needs are not dispatched yet or still outstanding. The trainer has trained those up to `below`."""
        ...
