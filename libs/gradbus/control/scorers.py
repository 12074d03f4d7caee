"""Scorers that users give a live run."""

from __future__ import annotations

from typing import Final

from gradbus.control.runs import StoredModel
from gradbus.spec import RewardChange, RunSpec

WANTED_SCORERS: Final = "scorers_wanted"
SCORERS: Final = "scorers"


class ScorerChanges(StoredModel):
    """The values of two keys of a run, in the order in which the changes were asked for.

    `<run>.scorers_wanted`, written by the gateway: each with the first group that the user allows. `<run>.scorers`, written by the
    conductor: as many of them as are decided, each with the first group that it judges.
    """

    changes: tuple[RewardChange, ...] = ()

    def to_bytes(self) -> bytes:
        """As stored: without defaults, so that an older release reads what has no field that it lacks."""
        return self.model_dump_json(exclude_defaults=True).encode()

    @classmethod
    def parse(cls, value: bytes | None) -> ScorerChanges:
        """Raises pydantic's ValidationError for a value that neither of them has written."""
        return cls() if value is None else cls.model_validate_json(value)

    def beyond(self, other: ScorerChanges) -> tuple[RewardChange, ...]:
        """Those that `other`, which is the beginning of these, does not have."""
        return self.changes[len(other.changes) :]

    def added(self, change: RewardChange) -> ScorerChanges:
        """With one more."""
        return ScorerChanges(changes=(*self.changes, change))

    def applied(self, spec: RunSpec) -> RunSpec:
        """The spec as if it had been submitted with these changes."""
        reward = spec.reward
        for change in self.changes:
            reward = reward.with_change(change)
        return spec.model_copy(update={"reward": reward})
