"""Evaluation: held-out rows, greedy, by a named version. Work like any other, with an index space of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One result a (run, version)."""

    version: int
    samples: int
    """Rows that could be judged."""
    reward: float | None
    """None if no row could be judged: that is no reward of 0."""
    components: Mapping[str, float]
    accuracy: float | None
    """The mean of what the spec calls its metric."""

    def to_json(self) -> dict[str, object]:
        """As stored and as sent in events."""
        return {
            "version": self.version,
            "samples": self.samples,
            "reward": self.reward,
            "components": dict(self.components),
            "accuracy": self.accuracy,
        }


def due_versions(spec: RunSpec) -> list[int]:
    """Before the first step, every N steps, and the final version."""
    if spec.data.eval is None:
        return []
    return sorted({*range(0, spec.schedule.steps, spec.evaluation.every), spec.schedule.steps})


def summarise(version: int, entries: Iterable[LogEntry], metric: str) -> EvaluationResult:
    """Means over the rows that the scorer could judge."""
    rewards = [reward for entry in entries for reward in entry.rewards if reward.status == REWARD_STATUS_OK]
    names = sorted({name for reward in rewards for name in reward.components})
    components = {name: _mean([reward.components[name] for reward in rewards if name in reward.components]) for name in names}
    mean = _mean([reward.reward for reward in rewards]) if rewards else None
    return EvaluationResult(version, len(rewards), mean, components, components.get(metric, mean))


def encode_results(results: Mapping[int, EvaluationResult]) -> bytes:
    """All results of a run, for its key in the bucket `runs`."""
    return json.dumps([results[version].to_json() for version in sorted(results)]).encode()


def decode_results(value: bytes | None) -> dict[int, EvaluationResult]:
    """The reverse of `encode_results`; nothing stored is no results."""
    return {item["version"]: EvaluationResult(**item) for item in json.loads(value or b"[]")}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
