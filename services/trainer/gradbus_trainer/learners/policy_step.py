"""The updates of a step of the policy. All learners share it, and differ in how they compute a pass and an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from gradbus.algorithms import learner_computes_reference
from gradbus.spec import RunSpec
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.critic.critic import Critic
from gradbus_trainer.learners.gradient_step import mean_of_updates
from gradbus_trainer.learners.loss_inputs import reads_anchor
from gradbus_trainer.learners.preference import LogProbs, PreferenceLossSettings, preference_settings, weighed_by
from gradbus_trainer.step.batch import Batch
from gradbus_trainer.step.minibatches import minibatches
from gradbus_trainer.step.second_moment import within_second_moment

Update = Callable[[Batch, float], StepMetrics]
"""One update by the policy loss, at a learning rate."""


@dataclass(frozen=True, slots=True)
class PolicyPasses:
    """What a learner computes. Ranks call the same function together, each with all rows."""

    present: Callable[[Batch], LogProbs]
    """The log-probabilities of each sample's tokens, by the model as it is."""
    base: Callable[[Batch], LogProbs]
    """The same by the model without its adapters."""
    update: Update


class PolicyStep:
    """The order of a step: the anchor, the critic, the weights of pairs or labels, then the updates of the policy."""

    def __init__(self, spec: RunSpec, critic: Critic | None) -> None:
        self._spec = spec
        self._critic = critic
        self._preference = preference_settings(spec)
        self._reads_anchor = reads_anchor(spec)

    def train(self, batch: Batch, before: StepMetrics, passes: PolicyPasses) -> StepMetrics:
        """The updates of all that the step trains; `before` are the metrics of a step that has changed nothing."""
        rate = before.learning_rate
        if self._reads_anchor:
            batch = anchored(batch, passes.present(batch))
        if self._critic is not None:
            return self._critic.train(batch, before, partial(self._optimise, rate=rate, update=passes.update))
        if self._preference is not None:
            return self._optimise_preference(batch, rate, passes, self._preference)
        return self._optimise(batch, rate, passes.update)

    def _optimise(self, batch: Batch, rate: float, update: Update) -> StepMetrics:
        """The updates of a step, each over its own part of the groups, to the first that finds the policy too far from that before them."""
        bounded = within_second_moment(batch, self._spec.algorithm.second_moment)
        inner, updates = self._spec.trainer.inner, list[StepMetrics]()
        for part in minibatches(bounded.batch, inner, self._spec.seed):
            updates.append(update(part, rate))
            if inner.stop_kl is not None and updates[-1].ratio.step_kl > inner.stop_kl:
                break
        metrics = mean_of_updates(updates, batch)
        return replace(metrics, ratio=replace(metrics.ratio, outliers=bounded.share))

    def _optimise_preference(self, batch: Batch, rate: float, passes: PolicyPasses, settings: PreferenceLossSettings) -> StepMetrics:
        """The update by the loss of the batch's pairs or labelled responses."""
        base = partial(passes.base, batch) if learner_computes_reference(self._spec) else None
        weighed = weighed_by(batch, partial(passes.present, batch), base, settings)
        return weighed.metrics_of(self._optimise(weighed.batch, rate, passes.update))


def anchored(batch: Batch, present: LogProbs) -> Batch:
    """The batch with the log-probabilities of the policy before the step's first update, `[T]` of each sample."""
    parts = zip(batch.samples, present, strict=True)
    return Batch(batch.step, [replace(sample, proximal_logprobs=part) for sample, part in parts])
