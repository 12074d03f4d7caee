"""The groups of a version's steps, and what judged them, as spec and log have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gradbus.algorithms import Algorithm, numbered_sequences
from gradbus.ids import digest_of_json
from gradbus.resources.version_lineage import ScorerResource, TrainedGroup
from gradbus.spec import RewardChange, RunSpec
from gradbus.v1.group_pb2 import Group, LogEntry, Verdict
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK
from gradbus_gateway.resources.public_text import enum_word, public_text


def scorers_of(spec: RunSpec) -> Iterator[ScorerResource]:
    """Those of a run, in the order of its spec."""
    for section, scorer in spec.reward.scorers.items():
        first = scorer.from_group if isinstance(scorer, RewardChange) else 0
        version = digest_of_json(scorer.alone.model_dump(mode="json"))
        if scorer.grader is not None:
            yield ScorerResource(section=section, kind="grader", name=scorer.grader.type, version=version, from_group=first)
        elif scorer.service is not None:
            yield ScorerResource(section=section, kind="service", name=scorer.service, version=version, from_group=first)
    if (model := spec.reward.model) is not None:
        yield ScorerResource(section="reward", kind="model", name=model.source, version=digest_of_json(model.files))
    if (world := spec.environment) is not None:
        kind: Literal["agent", "environment"] = "agent" if world.agent else "environment"
        name = world.agent or world.service or "source"
        yield ScorerResource(section="environment", kind=kind, name=name, version=digest_of_json(world.model_dump(mode="json")))
    if (teacher := spec.teacher) is not None:
        content = teacher.served.model_dump(mode="json") if teacher.served else teacher.files
        yield ScorerResource(section="teacher", kind="model", name=teacher.source, version=digest_of_json(content))


def trained_group(entry: LogEntry, step: int, digest: str, algorithm: Algorithm) -> TrainedGroup:
    """Raises DecodeError or ValueError for an entry that no conductor has written."""
    group = Group.FromString(entry.group)
    rewards = [reward.reward for reward in algorithm.rewards_of(entry, len(group.samples)) if reward.status == REWARD_STATUS_OK]
    spans = [span for sample in group.samples for part in numbered_sequences(sample) for span in part.spans]
    return TrainedGroup(
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
