"""What made a policy version: the groups of its steps, their prompts, and what judged them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gradbus.spec import AncestorSpec


class ScorerResource(BaseModel):
    """What judged the samples of a run."""

    section: str = Field(
        description="Of the spec: `reward`, `reward.changes.<n>`, `reward.shadow.<name>` (never trained), `environment` or `teacher`."
    )
    kind: Literal["grader", "service", "model", "environment", "agent"]
    name: str = Field(description="The grader's type, the service's address, or where the model comes from.")
    version: str = Field(
        description="Digest of what the spec says of it, sources and model files included. A service may change behind its address."
    )
    from_group: int = Field(0, description="Index of the first group that it judged; a scorer of `reward` judged up to the next one's.")


class TrainedGroup(BaseModel):
    """A group of a step that led to the version. One that was filtered or dropped took a place and trained nothing."""

    index: int
    step: int
    row_index: int = Field(description="Index of its row in the dataset, from 0.")
    prompt: str
    verdict: str
    reason: str
    samples: int
    reward: float | None = Field(
        description="Mean over the samples that could be judged, without a greedy one that is the others' baseline; null without one."
    )
    sampled_by: list[int] = Field(description="The policy versions that sampled what is trained of it.")
    digest: str = Field(description="SHA-256 of the log entry, hex, as the checkpoint's manifest has it.")


class VersionLineageResource(BaseModel):
    """A policy version, and a page of the groups from which it was made."""

    object: Literal["version_lineage"] = "version_lineage"
    run_id: str
    name: str
    version: int
    digest: str | None = Field(description="Of its weights, also after retention has deleted them; null if it was not published.")
    base: str = Field(description="The model from which the first run started.")
    parent: AncestorSpec | None = Field(description="The version of another run from which this run started.")
    scorers: list[ScorerResource]
    groups: list[TrainedGroup] = Field(description="In the order in which they entered the log, replaced ones in the order of the data.")
    has_more: bool
    next_after: int | None = Field(description="Send as `?after=` for the next page.")
