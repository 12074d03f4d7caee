"""A step in metrics: what the run's chart says, and the distributions behind its means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from gradbus.telemetry import CardinalityLimit, Metrics, is_exporting
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.step.batch_builder import BatchStats

WHOLE: Final = "reward"
_PARTS: Final = 16
"""Parts of a reward that have curves of their own; their names are the user's."""


class StepRecorder:
    """Of one run, as long as it is trained here."""

    def __init__(self, numbers: Metrics) -> None:
        self._numbers = numbers
        self._part = CardinalityLimit(_PARTS)
        numbers.count("gradbus.trained.steps", 0)

    def step(self, metrics: StepMetrics, facts: BatchStats, seconds: Mapping[str, float]) -> None:
        """One more step; `seconds` by phase."""
        if not is_exporting():
            return
        numbers = self._numbers
        numbers.count("gradbus.trained.steps")
        numbers.count("gradbus.trained.tokens", metrics.tokens)
        for phase, spent in seconds.items():
            numbers.count("gradbus.run.time", spent, {"gradbus.phase": phase})
        if not metrics.noop:
            self._policy(metrics)
        self._rewards(facts)
        self._responses(facts)

    def held(self, version: int, waiting: int) -> None:
        """The version published, and how many groups have come from the log for later steps."""
        self._numbers.set("gradbus.weights.version", version)
        self._numbers.set("gradbus.groups.waiting", waiting, {"gradbus.stage": "log"})

    def _policy(self, metrics: StepMetrics) -> None:
        set_gauge, ratio = self._numbers.set, metrics.ratio
        set_gauge("gradbus.policy.kl", metrics.loss.kl)
        set_gauge("gradbus.policy.entropy", metrics.loss.entropy)
        set_gauge("gradbus.policy.loss", metrics.loss.total)
        set_gauge("gradbus.policy.grad_norm", metrics.grad_norm)
        set_gauge("gradbus.policy.learning_rate", metrics.learning_rate)
        set_gauge("gradbus.policy.logprob_difference", ratio.logprob_diff)
        set_gauge("gradbus.policy.clip_fraction", ratio.clipped_low, {"gradbus.side": "low"})
        set_gauge("gradbus.policy.clip_fraction", ratio.clipped_high, {"gradbus.side": "high"})
        set_gauge("gradbus.policy.ratio", ratio.mean, {"gradbus.statistic": "mean"})
        set_gauge("gradbus.policy.ratio", ratio.max, {"gradbus.statistic": "max"})

    def _rewards(self, facts: BatchStats) -> None:
        if not facts.rewards:
            return  # the last step's stay: a step without a judged sample has no mean
        parts: dict[str, Sequence[float]] = {self._part(name): values for name, values in facts.components.items()}
        parts[WHOLE] = facts.rewards
        arrays = {name: np.asarray(values) for name, values in parts.items()}
        self._numbers.replace("gradbus.reward.mean", "gradbus.reward.part", {name: float(of.mean()) for name, of in arrays.items()})
        self._numbers.replace("gradbus.reward.std", "gradbus.reward.part", {name: float(of.std()) for name, of in arrays.items()})

    def _responses(self, facts: BatchStats) -> None:
        numbers, lengths = self._numbers, sorted(facts.lengths)
        if lengths:
            numbers.set("gradbus.response.length", sum(lengths) / len(lengths), {"gradbus.statistic": "mean"})
            numbers.set("gradbus.response.length", lengths[len(lengths) * 95 // 100], {"gradbus.statistic": "p95"})
            numbers.set("gradbus.response.length", lengths[-1], {"gradbus.statistic": "max"})
            numbers.set("gradbus.response.truncated", facts.truncated / len(lengths))
        numbers.observe_many("gradbus.samples.length", lengths)
        numbers.observe_many("gradbus.samples.staleness", facts.staleness)
        numbers.count("gradbus.samples.masked", facts.masked)
        for verdict, left in facts.left.items():
            by = {"gradbus.verdict": verdict}
            numbers.count("gradbus.groups", left.groups, by)
            numbers.count("gradbus.groups.samples", left.samples, by)
            numbers.count("gradbus.groups.tokens", left.tokens, by)
