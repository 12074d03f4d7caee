"""The metrics of a run's steps: the values of its chart, and the distributions behind its means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from gradbus.telemetry import CardinalityLimit, Metrics, is_exporting
from gradbus_trainer.learners.base import CriticMetrics, PreferenceMetrics, RatioMetrics, StepMetrics
from gradbus_trainer.step.batch_builder import BatchStats

WHOLE: Final = "reward"
_PARTS: Final = 16
"""Reward components with a series of their own; their names are the user's."""


class StepMetricsRecorder:
    """Metrics of one run, exported as long as it is trained here. `names` are those of its algorithm."""

    def __init__(self, metrics: Metrics, names: Sequence[str] = ()) -> None:
        self._metrics = metrics
        self._names = frozenset(names)
        self._part = CardinalityLimit(_PARTS)
        metrics.count("gradbus.trained.steps", 0)

    def step(self, step: StepMetrics, stats: BatchStats, seconds: Mapping[str, float]) -> None:
        """Adds a step; `seconds` by phase."""
        if not is_exporting():
            return
        self._metrics.count("gradbus.trained.steps")
        self._metrics.count("gradbus.trained.tokens", step.tokens)
        for phase, spent in seconds.items():
            self._metrics.count("gradbus.run.time", spent, {"gradbus.phase": phase})
        if not step.noop:
            self._policy(step)
            if stats.sampled:
                self._sampling(step)
        if step.critic is not None:
            self._critic(step.critic)
        if step.preference is not None:
            self._preference(step.preference, step.loss.kl)
        self._rewards(stats)
        self._responses(stats)

    def alarms(self, lasting: Mapping[str, int]) -> None:
        """1 for each kind of alarm that lasts, 0 for each other one that the run can raise."""
        self._metrics.replace("gradbus.alarms", "gradbus.alarm", lasting)

    def reached(self, version: int, waiting: int) -> None:
        """The learner's weights are those of version `version`, while `waiting` groups had arrived for later steps."""
        self._metrics.set("gradbus.weights.version", version)
        self._metrics.set("gradbus.groups.waiting", waiting, {"gradbus.stage": "log"})

    def _policy(self, step: StepMetrics) -> None:
        set_gauge = self._metrics.set
        set_gauge("gradbus.policy.loss", step.loss.total)
        set_gauge("gradbus.policy.grad_norm", step.grad_norm)
        set_gauge("gradbus.policy.learning_rate", step.learning_rate)
        if step.preference is None:
            set_gauge("gradbus.policy.entropy", step.loss.entropy)
        self._axes(step)

    def _sampling(self, step: StepMetrics) -> None:
        """What compares the policy with the one that sampled, and with the base model."""
        set_gauge, ratio = self._metrics.set, step.ratio
        set_gauge("gradbus.policy.kl", step.loss.kl)
        if step.teacher_kl is not None:
            set_gauge("gradbus.policy.teacher_kl", step.teacher_kl)
        set_gauge("gradbus.policy.logprob_difference", ratio.logprob_diff)
        set_gauge("gradbus.policy.clip_fraction", ratio.clipped_low, {"gradbus.side": "low"})
        set_gauge("gradbus.policy.clip_fraction", ratio.clipped_high, {"gradbus.side": "high"})
        set_gauge("gradbus.policy.ratio", ratio.mean, {"gradbus.statistic": "mean"})
        set_gauge("gradbus.policy.ratio", ratio.max, {"gradbus.statistic": "max"})

    def _axes(self, step: StepMetrics) -> None:
        """What only some algorithms report."""
        set_gauge, names, loss = self._metrics.set, self._names, step.loss
        self._ratio_axes(step.ratio)
        if "kl_max" in names:
            set_gauge("gradbus.policy.kl_max", loss.kl_max)
        if "drift" in names:
            set_gauge("gradbus.policy.drift", loss.drift)
        if "nll" in names:
            set_gauge("gradbus.policy.nll", loss.nll)
        if step.coefficients is not None:
            if "kl_coefficient" in names:
                set_gauge("gradbus.policy.coefficient", step.coefficients.kl, {"gradbus.term": "kl"})
            if "entropy_coefficient" in names:
                set_gauge("gradbus.policy.coefficient", step.coefficients.entropy, {"gradbus.term": "entropy"})

    def _ratio_axes(self, ratio: RatioMetrics) -> None:
        set_gauge, names = self._metrics.set, self._names
        if "outliers" in names:
            set_gauge("gradbus.policy.outliers", ratio.outliers)
        if "covariance_clipped" in names:
            set_gauge("gradbus.policy.covariance_clipped", ratio.covariance_clipped)
        if "total_variation" in names:
            set_gauge("gradbus.policy.total_variation", ratio.total_variation)
        if "step_kl" in names:
            set_gauge("gradbus.policy.step_kl", ratio.step_kl)

    def _critic(self, critic: CriticMetrics) -> None:
        self._metrics.set("gradbus.critic.loss", critic.loss)
        self._metrics.set("gradbus.critic.explained_variance", critic.explained_variance)
        self._metrics.set("gradbus.critic.grad_norm", critic.grad_norm)

    def _preference(self, preference: PreferenceMetrics, kl: float) -> None:
        """What has no value in this step keeps that of an earlier one."""
        labels = ("chosen", "rejected")
        if preference.accuracy is None:
            labels = ("desirable", "undesirable")
            self._metrics.set("gradbus.policy.kl", kl)
        else:
            self._metrics.set("gradbus.preference.accuracy", preference.accuracy)
        if preference.margin is not None:
            self._metrics.set("gradbus.preference.margin", preference.margin)
        for label, value in zip(labels, (preference.chosen, preference.rejected), strict=True):
            if value is not None:
                self._metrics.set("gradbus.preference.response", value, {"gradbus.label": label})

    def _rewards(self, stats: BatchStats) -> None:
        if not stats.rewards:
            return  # the values of the last step stay: a step without a judged sample has no mean
        parts: dict[str, Sequence[float]] = {self._part(name): values for name, values in stats.components.items()}
        parts[WHOLE] = stats.rewards
        arrays = {name: np.asarray(values) for name, values in parts.items()}
        self._metrics.replace("gradbus.reward.mean", "gradbus.reward.part", {name: float(of.mean()) for name, of in arrays.items()})
        self._metrics.replace("gradbus.reward.std", "gradbus.reward.part", {name: float(of.std()) for name, of in arrays.items()})
        self._metrics.set("gradbus.reward.range", min(stats.rewards), {"gradbus.statistic": "min"})
        self._metrics.set("gradbus.reward.range", max(stats.rewards), {"gradbus.statistic": "max"})

    def _responses(self, stats: BatchStats) -> None:
        metrics, lengths = self._metrics, sorted(stats.lengths)
        if lengths:
            metrics.set("gradbus.response.length", sum(lengths) / len(lengths), {"gradbus.statistic": "mean"})
            metrics.set("gradbus.response.length", lengths[len(lengths) * 95 // 100], {"gradbus.statistic": "p95"})
            metrics.set("gradbus.response.length", lengths[-1], {"gradbus.statistic": "max"})
            metrics.set("gradbus.response.truncated", stats.truncated / len(lengths))
        metrics.observe_many("gradbus.samples.length", lengths)
        metrics.observe_many("gradbus.samples.staleness", stats.staleness)
        metrics.count("gradbus.samples.masked", stats.masked)
        for verdict, counts in stats.by_verdict.items():
            by = {"gradbus.verdict": verdict}
            metrics.count("gradbus.groups", counts.groups, by)
            metrics.count("gradbus.groups.samples", counts.samples, by)
            metrics.count("gradbus.groups.tokens", counts.tokens, by)
