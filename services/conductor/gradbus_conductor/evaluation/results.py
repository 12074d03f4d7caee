"""Results of evaluations: mean rewards over held-out rows, completed greedily by one version."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


def encode_result(newest: EvaluationResult) -> bytes:
    """A run's newest result, for its key in the bucket `runs`: a list of one. The run's events hold all results."""
    return json.dumps([newest.to_json()]).encode()


def decode_result(value: bytes | None) -> EvaluationResult | None:
    """The newest stored result, or None."""
    return max((EvaluationResult(**item) for item in json.loads(value or b"[]")), key=lambda result: result.version, default=None)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
