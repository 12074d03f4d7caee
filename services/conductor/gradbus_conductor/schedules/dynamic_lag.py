"""`fixed_lag` with dynamic sampling: filtered groups are replaced, in the order of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from gradbus.experience.dynamic_sampling import DynamicSampling
from gradbus.spec import RunSpec
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_conductor.schedules.base import AdmissionDecision, Dispatch, Ready


class DynamicLag:
    """Follows the rules of `DynamicSampling` as verdicts come in.

    A version's groups are dispatched once it is published, for only then is it decided which groups the steps before took.
    """

    def __init__(self, spec: RunSpec, rules: DynamicSampling) -> None:
        self._rules = rules
        self._last = spec.schedule.steps - 1
        self._head = 0
        self._step = 0
        """The newest version, or an older one whose step waits for a verdict."""
        self._start = 0
        """The first group of `_step`."""
        self._next = 0
        """The first group that no version up to `_step` samples: its extent, as far as it is known."""
        self._verdicts: dict[int, bool] = {}
        """Of the groups in the log from `_start` on."""
        self._outstanding: dict[int, int] = {}

    def recover(self, entries: Iterable[tuple[int, bool]], trained: TrainerProgress) -> None:  # noqa: D102
        frontier = trained.frontier
        self._step, self._start = trained.step, frontier.below
        self._verdicts = {index: trainable for index, trainable in entries if index >= frontier.below}
        self._next, self._outstanding = frontier.below, {}
        for version, extent in enumerate(frontier.extents, start=trained.step - len(frontier.extents)):
            self._extend(version, extent)
        if self._step <= self._last:
            self._follow()

    def dispatchable(self, head: int) -> list[Dispatch]:  # noqa: D102
        self._head = max(self._head, head)
        return self._follow() if self._step <= self._last else []

    @property
    def next_group(self) -> int:  # noqa: D102
        return max([self._next, *(index + 1 for index in self._verdicts)])  # after a recovery the log may be ahead of `_next`

    def outstanding(self) -> dict[int, int]:  # noqa: D102
        return self._outstanding

    def admit(self, ready: Iterable[Ready], overdue: Iterable[int]) -> AdmissionDecision:  # noqa: ARG002, D102
        # As in `FixedLag`: the order does not matter to the trainer, and a step waits for a late group.
        return AdmissionDecision(append=[group.index for group in ready])

    def appended(self, index: int, trainable: bool) -> None:  # noqa: D102
        if self._outstanding.pop(index, None) is not None:
            self._verdicts[index] = trainable

    def is_incomplete(self, step: int, below: int = 0) -> bool:  # noqa: D102
        verdicts = list(self._known())
        if self._start + len(verdicts) < below:
            return False  # a group is outstanding here that the trainer has trained, and its version may be gone
        for _ in range(self._step, step + 1):
            if (taken := self._rules.taken(verdicts)) is None:
                return True
            verdicts = verdicts[taken:]
        return False

    def _follow(self) -> list[Dispatch]:
        """The groups that are new up to the newest version; the steps before it are left behind."""
        new: list[Dispatch] = []
        while True:
            verdicts = list(self._known())
            new += self._extend(self._step, self._rules.extent(self._step, self._start, self._next, verdicts))
            taken = self._rules.taken(verdicts)
            if taken is None or self._step >= min(self._head, self._last):
                return new
            for index in range(self._start, self._start + taken):
                del self._verdicts[index]
            self._step, self._start = self._step + 1, self._start + taken

    def _extend(self, version: int, extent: int) -> list[Dispatch]:
        """Takes up the groups below `extent` for `version`; those that are not in the log are outstanding."""
        new = [Dispatch(index, version) for index in range(self._next, extent) if index not in self._verdicts]
        self._next = max(self._next, extent)
        self._outstanding.update((item.index, item.version) for item in new)
        return new

    def _known(self) -> Iterator[bool]:
        """The verdicts from `_start` on, up to the first that is missing."""
        for index in count(self._start):
            if index not in self._verdicts:
                return
            yield self._verdicts[index]
