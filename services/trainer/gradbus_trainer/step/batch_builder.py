"""From the groups of a step to its batch, and to the statistics that the step reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradbus.experience.components import add_components
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_FILTERED, VERDICT_TRAIN
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK
from gradbus_trainer.step.batch import Batch, TrainSample
from gradbus_trainer.step.groups import LoggedGroup

Verdict = Literal["trained", "filtered", "dropped"]
_VERDICTS: dict[int, Verdict] = {VERDICT_TRAIN: "trained", VERDICT_FILTERED: "filtered", VERDICT_DROPPED: "dropped"}


@dataclass(slots=True)
class VerdictCounts:
    """Groups of one verdict with their samples and response tokens. A group dropped before it was sampled has no samples."""

    groups: int = 0
    samples: int = 0
    tokens: int = 0

    def add(self, lengths: Sequence[int]) -> None:
        """Adds a group, by the response tokens of its samples."""
        self.groups += 1
        self.samples += len(lengths)
        self.tokens += sum(lengths)


@dataclass(slots=True)
class BatchStats:
    """Statistics of a step's groups; the learner's own are in `StepMetrics`. Dropped groups are in `by_verdict` alone."""

    sampled: bool = True
    """Whether a policy sampled the responses."""
    scored: bool = True
    """Whether a scorer judged them."""
    rewards: list[float] = field(default_factory=list)
    """Without those of samples that are the baseline of the others."""
    components: dict[str, list[float]] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=list)
    """By sample that a policy sampled: versions between the step and the oldest version that sampled it."""
    lengths: list[int] = field(default_factory=list)
    """By sample: response tokens."""
    truncated: int = 0
    masked: int = 0
    unjudged: str = ""
    """Why the first sample without a reward has none."""
    replayed: int = 0
    """Tokens whose experts are the sampler's."""
    not_replayed: int = 0
    """Tokens of a run that replays routes whose experts are the trainer's choice."""
    by_verdict: dict[Verdict, VerdictCounts] = field(default_factory=lambda: {verdict: VerdictCounts() for verdict in _VERDICTS.values()})

    @property
    def filtered(self) -> int:
        """Groups that were filtered."""
        return self.by_verdict["filtered"].groups

    @property
    def dropped(self) -> int:
        """Groups that were dropped."""
        return self.by_verdict["dropped"].groups

    @property
    def mean_staleness(self) -> float:
        """In versions, over the step's samples."""
        return _mean(self.staleness)

    def add(self, step: int, group: LoggedGroup) -> None:
        """Adds a group of step `step`."""
        # Dropping late work favours short answers (R5), so that the lengths of dropped groups are counted too.
        self.by_verdict[_VERDICTS[group.entry.verdict]].add(group.decoded.lengths)
        if group.entry.verdict != VERDICT_DROPPED:
            self._add_rewards(group)
            self._add_samples(step, group)

    def to_json(self) -> dict[str, Any]:
        """The fields of a `metrics` event."""
        mean = _mean(self.rewards)
        rewards = {
            "reward": mean,
            "reward_min": min(self.rewards, default=0.0),
            "reward_max": max(self.rewards, default=0.0),
            "reward_std": math.sqrt(_mean([(reward - mean) ** 2 for reward in self.rewards])),
            "components": {name: _mean(values) for name, values in sorted(self.components.items())},
        }
        staleness = {"staleness_mean": self.mean_staleness, "staleness_max": max(self.staleness, default=0)}
        return {
            **(rewards if self.scored else {}),
            **(staleness if self.sampled else {}),
            "response_length": _mean(self.lengths),
            "truncated": self.truncated / max(1, len(self.lengths)),
            "masked": self.masked,
            "filtered": self.filtered,
            "dropped": self.dropped,
        } | ({"routes_replayed": self.replayed, "routes_not_replayed": self.not_replayed} if self.replayed + self.not_replayed else {})

    def _add_rewards(self, group: LoggedGroup) -> None:
        for reward in group.decoded.rewards:
            if reward.status != REWARD_STATUS_OK:
                self.unjudged = self.unjudged or reward.reason
            else:
                self.rewards.append(reward.reward)
                add_components(self.components, reward.components)

    def _add_samples(self, step: int, group: LoggedGroup) -> None:
        decoded = group.decoded
        self.lengths += decoded.lengths
        self.truncated += decoded.truncated
        self.masked += decoded.masked
        self.replayed, self.not_replayed = self.replayed + decoded.routed[0], self.not_replayed + decoded.routed[1]
        if self.sampled:
            self.staleness += [step - version if version is not None else 0 for version in decoded.oldest_versions]


def build_batch(step: int, groups: Sequence[LoggedGroup], *, sampled: bool = True, scored: bool = True) -> tuple[Batch, BatchStats]:
    """The rows that step `step` trains, in order of index and n, and the statistics of all its groups; see `BatchStats`."""
    rows: list[TrainSample] = []
    stats = BatchStats(sampled, scored)
    for group in groups:
        stats.add(step, group)
        rows += group.decoded.rows
    return Batch(step, rows), stats


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
