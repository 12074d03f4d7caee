"""Where the model of a run comes from, and the runs whose model comes from it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, Field

from gradbus.control.runs import RunState
from gradbus.spec import AncestorSpec
from gradbus_gateway.runs.store import Run, UnreadableRun

Role = Literal["model", "reward_model", "teacher"]


class RelatedRun(BaseModel):
    """A run in a lineage, and which version passed from the older run to the younger one."""

    id: str
    name: str
    state: RunState | Literal["unreadable", "deleted"]
    role: Role = Field(description="What the younger run took the version for.")
    version: int = Field(description="Of an ancestor: the version that was taken from it. Of a child: the version that it took.")
    digest: str

    @classmethod
    def ancestor(cls, role: Role, spec: AncestorSpec, run: Run | UnreadableRun | None) -> Self:
        """An ancestor; `run` is None if it has been deleted."""
        state = "deleted" if run is None else "unreadable" if isinstance(run, UnreadableRun) else run.state
        return cls(id=spec.run, name=spec.name, state=state, role=role, version=spec.version, digest=spec.digest)

    @classmethod
    def child(cls, role: Role, run: Run, parent: AncestorSpec) -> Self:
        """A run that took the version `parent`."""
        return cls(id=run.run_id, name=run.record.spec.name, state=run.state, role=role, version=parent.version, digest=parent.digest)


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
