"""Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2) in the order of the data: which groups a step takes, and who samples them.

Step s begins at group b_s, where the step before it ended. It takes groups in order of index, until B of them can be trained or until it
has taken M. Version s samples the groups before its extent E_s that no older version samples:

    window   E_s = b_s + (k + 1) B, but no smaller than E_(s-1)
    refill   while all groups in [b_s, E_s) are judged and fewer than B of them can be trained, E_s grows

So versions and steps are functions of the verdicts alone: no clock, no order of arrival. No group is more than k versions old when it is
trained: of the groups before it from b_s on, fewer than (k + 1) B are trained, or the window holds them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradbus.spec import ScheduleSpec


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """The rules for one run. Verdicts are those of consecutive groups: whether each can be trained."""

    schedule: ScheduleSpec

    @classmethod
    def of(cls, schedule: ScheduleSpec) -> DynamicSampling | None:
        """The rules of a run that replaces filtered groups; None of one that does not."""
        return cls(schedule) if schedule.dynamic_sampling > 1 else None

    def taken(self, verdicts: Sequence[bool]) -> int | None:
        """How many groups a step takes, given the verdicts from its first group on; None while they do not decide it."""
        size = self.schedule.groups_per_step
        most = size * self.schedule.dynamic_sampling
        trainable = 0
        for count, verdict in enumerate(verdicts[:most], start=1):
            trainable += verdict
            if trainable == size or count == most:
                return count
        return None

    def extent(self, step: int, start: int, before: int, verdicts: Sequence[bool]) -> int:
        """E_s of `step`, which begins at `start`; `before` is E of the step before it, `verdicts` those from `start` on.

        It is final once the step's groups are decided, and then depends on their verdicts alone.
        """
        extent = max(before, start + self._ahead(step))
        while (count := extent - start) <= len(verdicts) and self.taken(verdicts[:count]) is None:
            extent += self._refill(step, sum(verdicts[:count]), count)
        return extent

    def kept(self, extents: Sequence[int]) -> Sequence[int]:
        """The extents of the last steps that a group may still be older than, oldest first."""
        lag = self.schedule.max_staleness
        return extents[-lag:] if lag else ()

    def _refill(self, step: int, trainable: int, count: int) -> int:
        """How many more groups to sample: as many as should give those that lack at the rate of the first `count`, within the bounds."""
        size = self.schedule.groups_per_step
        expected = -(-(size - trainable) * count // max(1, trainable))
        return min(expected, self._ahead(step) - trainable, size * self.schedule.dynamic_sampling - count)

    def _ahead(self, step: int) -> int:
        """Groups that version `step` may have to train: those of `step` and of the next k steps."""
        return self.schedule.groups_per_step * min(self.schedule.max_staleness + 1, self.schedule.steps - step)
