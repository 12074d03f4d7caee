"""Where the model of a run comes from, and the runs whose model comes from it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gradbus.control.runs import RunState

Role = Literal["model", "reward_model", "teacher"]


class RelatedRun(BaseModel):
    """A run in a lineage, and which version passed from the older run to the younger one."""

    id: str
    name: str
    state: RunState | Literal["unreadable", "deleted"]
    role: Role = Field(description="What the younger run took the version for.")
    version: int = Field(description="Of an ancestor: the version that was taken from it. Of a child: the version that it took.")
    digest: str


class LineageResource(BaseModel):
    """A run between its ancestors and its children."""

    object: Literal["lineage"] = "lineage"
    run_id: str
    name: str
    base: str = Field(description="The model from which the first run started: its path, with `@` and the revision of a hub id.")
    ancestors: list[RelatedRun] = Field(description="Oldest first; the last one is the parent. Of more than 64 only the nearest.")
    reward_model: list[RelatedRun] = Field(description="The runs from which the reward model comes, if it is a run's, in the same order.")
    teacher: list[RelatedRun] = Field(description="The runs from which the teacher comes, if it is a run's, in the same order.")
    children: list[RelatedRun] = Field(
        description="Runs that start from a version of this run, or are scored or taught by one, newest first."
    )
    has_more: bool = Field(description="Whether there are more children than `limit`.")
