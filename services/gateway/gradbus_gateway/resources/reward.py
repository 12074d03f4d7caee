"""What judges the samples of a run, group by group."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, Field

from gradbus.control.scorers import ScorerChanges
from gradbus.spec import RunSpec, ScorerSpec


class ScorerTurn(BaseModel):
    """A scorer, from a group to the next scorer's."""

    from_group: int | None = Field(description="Index of the first group that it judges; null until the run decides it, within a second.")
    wanted_from_group: int = Field(description="The first group that was asked for; 0: as soon as possible.")
    scorer: ScorerSpec


class RewardResource(BaseModel):
    """The scorers of a run, one after the other."""

    object: Literal["reward"] = "reward"
    run_id: str
    scorers: list[ScorerTurn] = Field(description="In the order of their groups, those that are not decided last.")

    @classmethod
    def of(cls, run_id: str, spec: RunSpec, wanted: ScorerChanges, decided: ScorerChanges) -> Self:
        """`spec` as it was submitted."""
        asked = {after.from_group: before.from_group for before, after in zip(wanted.changes, decided.changes, strict=False)}
        turns = [ScorerTurn(from_group=0, wanted_from_group=0, scorer=_scorer(spec.reward))]
        for change in decided.applied(spec).reward.changes:
            group = change.from_group
            turns.append(ScorerTurn(from_group=group, wanted_from_group=asked.get(group, group), scorer=_scorer(change)))
        undecided = wanted.undecided(decided)
        turns += [ScorerTurn(from_group=None, wanted_from_group=change.from_group, scorer=_scorer(change)) for change in undecided]
        return cls(run_id=run_id, scorers=turns)


def _scorer(section: ScorerSpec) -> ScorerSpec:
    return ScorerSpec(**{name: getattr(section, name) for name in ScorerSpec.model_fields})
