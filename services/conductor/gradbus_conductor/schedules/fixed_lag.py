"""`fixed_lag`: the version in the task bounds the staleness, and nothing is dropped."""

from __future__ import annotations

from collections.abc import Iterable

from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_conductor.schedules.base import AdmissionDecision, Dispatch, Ready


class FixedLag:
    """Step s trains groups [s*B, (s+1)*B), each sampled wholly by version max(0, s - k); given responses count as version 0's."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._size = spec.schedule.groups_per_step
        self._next = 0
        self._outstanding: dict[int, int] = {}

    def version_of(self, index: int) -> int:
        """The only version that may sample `index`."""
        return self._spec.oldest_allowed_version(index // self._size)

    def recover(self, entries: Iterable[tuple[int, bool]], trained: TrainerProgress) -> None:  # noqa: D102
        below = trained.frontier.below
        known = {index for index, _ in entries} | set(trained.frontier.above)
        self._next = max([self._next, below, *(index + 1 for index in known)])
        self._outstanding = {index: self.version_of(index) for index in range(below, self._next) if index not in known}

    def dispatchable(self, head: int) -> list[Dispatch]:  # noqa: D102
        # One step more than can be sampled at once. This is flow control only: the version in the task bounds the staleness.
        steps = min(self._spec.schedule.steps, head + self._spec.steps_ahead)
        new = [Dispatch(index, self.version_of(index)) for index in range(self._next, steps * self._size)]
        self._next += len(new)
        self._outstanding.update((item.index, item.version) for item in new)
        return new

    @property
    def next_group(self) -> int:  # noqa: D102
        return self._next

    def outstanding(self) -> dict[int, int]:  # noqa: D102
        return self._outstanding

    def admit(self, ready: Iterable[Ready], overdue: Iterable[int]) -> AdmissionDecision:  # noqa: ARG002, D102
        # The order does not matter to the trainer, and no group is ever dropped: the step waits for a late group.
        return AdmissionDecision(append=[group.index for group in ready])

    def appended(self, index: int, trainable: bool) -> None:  # noqa: ARG002, D102
        self._outstanding.pop(index, None)

    def is_incomplete(self, step: int, below: int = 0) -> bool:  # noqa: ARG002, D102
        end = (step + 1) * self._size
        return self._next < end or any(index in self._outstanding for index in range(step * self._size, end))
