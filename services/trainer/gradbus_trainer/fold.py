"""The fold: the state before a step and the step's groups make the state after it. Nothing else decides, neither clock nor arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradbus.algorithms import Observed, after_step, algorithm_of, step_coefficients
from gradbus.experience.dynamic_sampling import DynamicSampling
from gradbus.spec import RunSpec
from gradbus_trainer.checkpoints.state import TrainerState
from gradbus_trainer.learners.base import Learner, RatioMetrics, StepMetrics
from gradbus_trainer.step.batch import Batch
from gradbus_trainer.step.batch_builder import BatchStats, build_batch
from gradbus_trainer.step.covariance import without_covarying
from gradbus_trainer.step.dropped_tokens import Dropped
from gradbus_trainer.step.groups import LoggedGroup
from gradbus_trainer.step.kl_in_reward import with_kl_in_reward
from gradbus_trainer.step.whitening import whitened


class Fold:
    """One run's steps, for a live run and for its replay."""

    def __init__(self, spec: RunSpec, learner: Learner, state: TrainerState) -> None:
        """`state` is that of the learner: restored, or new."""
        self.state = state
        self._spec = spec
        self._learner = learner
        self._algorithm = algorithm_of(spec)
        self._sampling = DynamicSampling.of(spec.schedule)

    def batch(self, groups: Sequence[LoggedGroup]) -> tuple[Batch, BatchStats]:
        """What the state's step trains of its groups, and their statistics."""
        return build_batch(self.state.step, groups, sampled=self._algorithm.is_sampled, scored=self._algorithm.is_scored)

    def learn(self, batch: Batch) -> StepMetrics:
        """Trains the batch, and follows its metrics with the controllers. Raises TrainingError."""
        coefficients = step_coefficients(self._spec.algorithm, self.state.controllers)
        if coefficients is not None and self._algorithm.kl_by_step:
            batch = Batch(batch.step, with_kl_in_reward(batch.samples, coefficients.kl))
        if not self._algorithm.needs_critic:  # otherwise the learner makes the advantages, and whitens them
            batch = Batch(batch.step, whitened(batch.samples, self._spec.algorithm.whiten))
        clipped = without_covarying(batch, self._spec.algorithm.covariance_clip, self._spec.seed)
        metrics = self._told(clipped, replace(self._learner.train(clipped.batch, coefficients), coefficients=coefficients))
        if coefficients is not None and metrics.updates:
            observed = Observed(metrics.loss.kl, metrics.loss.entropy, self._spec.samples_per_step)
            self.state.controllers = after_step(self._spec.algorithm, self.state.controllers, observed)
        return metrics

    def advance(self, groups: Sequence[LoggedGroup]) -> None:
        """These groups are trained; the next step begins."""
        self.state.add_trained(groups, self._sampling)

    def _told(self, clipped: Dropped, metrics: StepMetrics) -> StepMetrics:
        """The metrics with what the batch alone tells, and without what it cannot tell."""
        if not self._algorithm.is_sampled:
            return replace(metrics, ratio=RatioMetrics())  # to a policy that sampled nothing
        batch = clipped.batch
        metrics = replace(metrics, ratio=replace(metrics.ratio, covariance_clipped=clipped.share))
        if self._algorithm.needs_teacher and batch.has_weight:
            metrics = replace(metrics, teacher_kl=batch.mean_kl("teacher_logprobs"))
        if self._algorithm.kl_in_reward:
            metrics = replace(metrics, loss=replace(metrics.loss, kl=batch.mean_kl("reference_logprobs")))
        return metrics
