"""Results of evaluations of one version: mean rewards over held-out rows that it completes greedily, or the loss of given responses."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradbus.algorithms import held_out_loss
from gradbus.experience.components import add_components
from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of one version of a run."""

    version: int
    samples: int
    """Rows that could be judged."""
    reward: float | None
    """Mean; None if no row could be judged, which is not a reward of 0."""
    components: Mapping[str, float]
    accuracy: float | None
    """Mean of the metric that the spec names."""

    def to_json(self) -> dict[str, object]:
        """As stored and as sent in events."""
        return {
            "version": self.version,
            "samples": self.samples,
            "reward": self.reward,
            "components": dict(self.components),
            "accuracy": self.accuracy,
        }


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """The loss of one version of a run on given responses."""

    version: int
    samples: int
    """Rows."""
    loss: float | None
    """None if it is not finite."""
    metrics: Mapping[str, float]
    """Those that are finite, under the names that they have in training."""

    @property
    def accuracy(self) -> float | None:
        """Share of pairs whose chosen response has the higher reward; None without pairs."""
        return self.metrics.get("accuracy")

    def to_json(self) -> dict[str, object]:
        """As stored."""
        return {"version": self.version, "samples": self.samples, "loss": self.loss, "metrics": dict(self.metrics)}

    @classmethod
    def of(cls, version: int, entries: Collection[LogEntry], spec: RunSpec) -> HeldOutLoss:
        """The loss of the rows; there must be one."""
        found = {name: value for name, value in held_out_loss(spec, entries).items() if math.isfinite(value)}
        return cls(version, len(entries), found.pop("loss", None), found)


Result = EvaluationResult | HeldOutLoss


def next_due(spec: RunSpec, after: int) -> int | None:
    """The first version above `after` to be evaluated: before the first step, every N steps, and the final one."""
    if spec.data.eval is None or after >= spec.schedule.steps:
        return None
    every = spec.evaluation.every
    return min((after // every + 1) * every, spec.schedule.steps)


def summarise(version: int, entries: Iterable[LogEntry], metric: str) -> EvaluationResult:
    """Means over the rows that the scorer could judge."""
    rewards = [reward for entry in entries for reward in entry.rewards if reward.status == REWARD_STATUS_OK]
    gathered: dict[str, list[float]] = {}
    for reward in rewards:
        add_components(gathered, reward.components, always=metric)
    components = {name: _mean(values) for name, values in sorted(gathered.items())}
    mean = _mean([reward.reward for reward in rewards]) if rewards else None
    return EvaluationResult(version, len(rewards), mean, components, components.get(metric, mean))


def encode_result(newest: Result) -> bytes:
    """A run's newest result, for its key in the bucket `runs`: a list of one. The run's events hold all results."""
    return json.dumps([newest.to_json()]).encode()


def decode_result(value: bytes | None) -> Result | None:
    """The newest stored result, or None."""
    return max(map(_decoded, json.loads(value or b"[]")), key=lambda result: result.version, default=None)


def _decoded(item: dict[str, Any]) -> Result:
    return HeldOutLoss(**item) if "loss" in item else EvaluationResult(**item)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
