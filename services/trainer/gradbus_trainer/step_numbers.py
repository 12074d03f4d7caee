"""A step in metrics: what the run's chart says, and the distributions behind its means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from gradbus.telemetry import Few, Numbers, are_read
from gradbus_trainer.learner import StepMetrics
from gradbus_trainer.rows import BatchFacts

WHOLE: Final = "reward"
_PARTS: Final = 16
"""Parts of a reward that have curves of their own; their names are the user's."""


class StepNumbers:
    """Of one run, as long as it is trained here."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._part = Few(_PARTS)
        numbers.count("gradbus.trained.steps", 0)

    def step(self, metrics: StepMetrics, facts: BatchFacts, seconds: Mapping[str, float]) -> None:
        """One more step; `seconds` by phase."""
        if not are_read():
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
        self._numbers.show("gradbus.weights.version", version)
        self._numbers.show("gradbus.groups.waiting", waiting, {"gradbus.stage": "log"})

    def _policy(self, metrics: StepMetrics) -> None:
        show, ratio = self._numbers.show, metrics.ratio
        show("gradbus.policy.kl", metrics.loss.kl)
        show("gradbus.policy.entropy", metrics.loss.entropy)
        show("gradbus.policy.loss", metrics.loss.total)
        show("gradbus.policy.gradient", metrics.grad_norm)
        show("gradbus.policy.learning_rate", metrics.learning_rate)
        show("gradbus.policy.logprob_difference", ratio.logprob_diff)
        show("gradbus.policy.clipped", ratio.clipped_low, {"gradbus.side": "low"})
        show("gradbus.policy.clipped", ratio.clipped_high, {"gradbus.side": "high"})
        show("gradbus.policy.ratio", ratio.mean, {"gradbus.statistic": "mean"})
        show("gradbus.policy.ratio", ratio.max, {"gradbus.statistic": "max"})

    def _rewards(self, facts: BatchFacts) -> None:
        if not facts.rewards:
            return  # the last step's stay: a step without a judged sample has no mean
        parts: dict[str, Sequence[float]] = {self._part(name): values for name, values in facts.components.items()}
        parts[WHOLE] = facts.rewards
        arrays = {name: np.asarray(values) for name, values in parts.items()}
        self._numbers.replace("gradbus.reward.mean", "gradbus.reward.part", {name: float(of.mean()) for name, of in arrays.items()})
        self._numbers.replace("gradbus.reward.deviation", "gradbus.reward.part", {name: float(of.std()) for name, of in arrays.items()})

    def _responses(self, facts: BatchFacts) -> None:
        numbers, lengths = self._numbers, sorted(facts.lengths)
        if lengths:
            numbers.show("gradbus.response.length", sum(lengths) / len(lengths), {"gradbus.statistic": "mean"})
            numbers.show("gradbus.response.length", lengths[len(lengths) * 95 // 100], {"gradbus.statistic": "p95"})
            numbers.show("gradbus.response.length", lengths[-1], {"gradbus.statistic": "max"})
            numbers.show("gradbus.response.truncated", facts.truncated / len(lengths))
        numbers.spread("gradbus.samples.length", lengths)
        numbers.spread("gradbus.samples.staleness", facts.staleness)
        numbers.count("gradbus.samples.masked", facts.masked)
        for verdict, left in facts.left.items():
            by = {"gradbus.verdict": verdict}
            numbers.count("gradbus.groups", left.groups, by)
            numbers.count("gradbus.groups.samples", left.samples, by)
            numbers.count("gradbus.groups.tokens", left.tokens, by)
