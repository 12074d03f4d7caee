"""What judges the samples of a run, group by group."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gradbus.spec import ScorerSpec


class ScorerTurn(BaseModel):
    """A scorer, from a group to the next scorer's."""

    from_group: int | None = Field(
        description="Index of the first group that it judges; null until the run decides it, at its next look if it goes on."
    )
    wanted_from_group: int = Field(description="The first group that was asked for; 0: as soon as possible.")
    scorer: ScorerSpec


class RewardResource(BaseModel):
    """The scorers of a run, one after the other."""

    object: Literal["reward"] = "reward"
    run_id: str
    scorers: list[ScorerTurn] = Field(description="In the order of their groups, those that are not decided last.")
