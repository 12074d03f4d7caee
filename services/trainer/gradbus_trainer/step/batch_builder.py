"""From log entries to the rows of a batch, in order of index and n."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradbus.spec import AlgorithmSpec
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_FILTERED, VERDICT_TRAIN, Group, LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK
from gradbus_trainer.step.batch import Batch, TrainSample
from gradbus_trainer.step.collector import Collected
from gradbus_trainer.step.prepared_group import NOTHING, PreparedGroup, prepare

Verdict = Literal["trained", "filtered", "dropped"]
_VERDICTS: dict[int, Verdict] = {VERDICT_TRAIN: "trained", VERDICT_FILTERED: "filtered", VERDICT_DROPPED: "dropped"}


@dataclass(slots=True)
class Left:
    """What left the log under one verdict. A group that was dropped before it was sampled has no samples."""

    groups: int = 0
    samples: int = 0
    tokens: int = 0

    def add(self, lengths: Sequence[int]) -> None:
        """One more group, by the response tokens of its samples."""
        self.groups += 1
        self.samples += len(lengths)
        self.tokens += sum(lengths)


@dataclass(slots=True)
class BatchStats:
    """What is charted of a step besides what the learner measures."""

    rewards: list[float] = field(default_factory=list)
    components: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    staleness: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    truncated: int = 0
    masked: int = 0
    filtered: int = 0
    dropped: int = 0
    unjudged: str = ""
    """Why the first sample that could not be judged was not."""
    left: dict[Verdict, Left] = field(default_factory=lambda: {verdict: Left() for verdict in _VERDICTS.values()})

    @property
    def mean_staleness(self) -> float:
        """In versions, over the step's samples."""
        return _mean(self.staleness)

    def to_json(self) -> dict[str, Any]:
        """As sent in a `metrics` event."""
        mean = _mean(self.rewards)
        return {
            "reward": mean,
            "reward_std": math.sqrt(_mean([(reward - mean) ** 2 for reward in self.rewards])),
            "components": {name: _mean(values) for name, values in sorted(self.components.items())},
            "staleness_mean": self.mean_staleness,
            "staleness_max": max(self.staleness, default=0),
            "response_length": _mean(self.lengths),
            "truncated": self.truncated / max(1, len(self.lengths)),
            "masked": self.masked,
            "filtered": self.filtered,
            "dropped": self.dropped,
        }


def build_batch(step: int, items: Sequence[Collected], algorithm: AlgorithmSpec) -> tuple[Batch, BatchStats]:
    """The rows that step `step` trains, and the facts about all its groups."""
    rows: list[TrainSample] = []
    facts = BatchStats()
    for item in items:
        facts.filtered += item.entry.verdict == VERDICT_FILTERED
        facts.dropped += item.entry.verdict == VERDICT_DROPPED
        prepared = item.prepared or prepare(item.entry, algorithm)
        facts.left[_VERDICTS[item.entry.verdict]].add(prepared.lengths if prepared is not NOTHING else _dropped_lengths(item.entry))
        if prepared is not NOTHING:
            _note(facts, step, item.entry, prepared)
        rows += prepared.rows
    return Batch(step, rows), facts


def _dropped_lengths(entry: LogEntry) -> list[int]:
    """Dropping late work favours short answers (R5): how long they were has to be seen."""
    return [len(sample.token_ids) // 4 for sample in Group.FromString(entry.group).samples]


def _note(facts: BatchStats, step: int, entry: LogEntry, prepared: PreparedGroup) -> None:
    for reward in entry.rewards:
        if reward.status == REWARD_STATUS_OK:
            facts.rewards.append(reward.reward)
            for name, value in reward.components.items():
                facts.components[name].append(value)
        else:
            facts.unjudged = facts.unjudged or reward.reason
    facts.lengths += prepared.lengths
    facts.truncated += prepared.truncated
    facts.masked += prepared.masked
    facts.staleness += [step - version if version is not None else 0 for version in prepared.oldest_versions]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
