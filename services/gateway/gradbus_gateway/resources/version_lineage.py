"""What made a policy version: the groups of its steps, their prompts, and what judged them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import BaseModel, Field

from gradbus.ids import digest_of_json
from gradbus.spec import AncestorSpec, RewardChange, RunSpec
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK
from gradbus_gateway.resources.logged_group import sequences
from gradbus_gateway.resources.public_text import enum_word, public_text


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

    @classmethod
    def all_of(cls, spec: RunSpec) -> Iterator[Self]:
        """Those of a run, in the order of its spec."""
        for section, scorer in spec.reward.scorers.items():
            first = scorer.from_group if isinstance(scorer, RewardChange) else 0
            version = digest_of_json(
                scorer.model_dump(mode="json", exclude={"shadow", "timeout_seconds", "model", "changes", "from_group"})
            )
            if scorer.grader is not None:
                yield cls(section=section, kind="grader", name=scorer.grader.type, version=version, from_group=first)
            elif scorer.service is not None:
                yield cls(section=section, kind="service", name=scorer.service, version=version, from_group=first)
        if (model := spec.reward.model) is not None:
            yield cls(section="reward", kind="model", name=model.source, version=digest_of_json(model.files))
        if (world := spec.environment) is not None:
            kind: Literal["agent", "environment"] = "agent" if world.agent else "environment"
            name = world.agent or world.service or "source"
            yield cls(section="environment", kind=kind, name=name, version=digest_of_json(world.model_dump(mode="json")))
        if (teacher := spec.teacher) is not None:
            content = teacher.served.model_dump(mode="json") if teacher.served else teacher.files
            yield cls(section="teacher", kind="model", name=teacher.source, version=digest_of_json(content))


class TrainedGroup(BaseModel):
    """A group of a step that led to the version. One that was filtered or dropped took a place and trained nothing."""

    index: int
    step: int
    row_index: int = Field(description="Index of its row in the dataset, from 0.")
    prompt: str
    verdict: str
    reason: str
    samples: int
    reward: float | None = Field(description="Mean over the samples that could be judged; null without one.")
    sampled_by: list[int] = Field(description="The policy versions that sampled what is trained of it.")
    digest: str = Field(description="SHA-256 of the log entry, hex, as the checkpoint's manifest has it.")

    @classmethod
    def of(cls, entry: LogEntry, step: int, digest: str) -> Self:
        """Raises DecodeError or ValueError for an entry that no conductor has written."""
        group = Group.FromString(entry.group)
        rewards = [reward.reward for reward in entry.rewards if reward.status == REWARD_STATUS_OK]
        spans = [span for sample in group.samples for part in sequences(sample) for span in part.spans]
        return cls(
            index=entry.index,
            step=step,
            row_index=group.row,
            prompt=group.prompt_text,
            verdict=enum_word(Verdict.Name(entry.verdict), "VERDICT_"),
            reason=public_text(entry.reason),
            samples=len(group.samples),
            reward=sum(rewards) / len(rewards) if rewards else None,
            sampled_by=sorted({span.version for span in spans if span.trainable}),
            digest=digest,
        )


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
