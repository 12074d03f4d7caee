"""Preference learning as a weighted policy loss.

A loss of pairs depends on the log-probabilities of all tokens of both responses, one of labelled responses on those of the whole step.
So a step first computes these without a gradient, and the loss from them with its derivative by each token, on the CPU. The policy loss
with the negative derivative in place of advantages, and without a ratio, then has the loss's gradient, whatever the micro-batches and
whoever computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradbus.spec import PreferenceSpec, RunSpec
from gradbus_kernels.operators import KtoSettings, PairTokens, PreferenceSettings, kto_loss, preference_loss
from gradbus_trainer.learners.base import LossMetrics, PreferenceMetrics, StepMetrics
from gradbus_trainer.step.batch import Batch

LogProbs = Sequence[NDArray[np.float32]]
"""Of each sample's tokens, `[T]`."""
PreferenceLossSettings = PreferenceSettings | KtoSettings


@dataclass(frozen=True, slots=True)
class WeighedBatch:
    """The batch of a step with what the policy loss needs in place of advantages, and the loss of its pairs or labelled responses."""

    batch: Batch
    """What is trained: not the mismatched responses."""
    loss: LossMetrics
    metrics: PreferenceMetrics

    def metrics_of(self, step: StepMetrics) -> StepMetrics:
        """The metrics of the step that trained the batch, with its own loss in place of the policy loss."""
        return replace(step, loss=replace(self.loss, entropy=step.loss.entropy), preference=self.metrics)


class _Loss(NamedTuple):
    total: torch.Tensor
    kl: float
    metrics: PreferenceMetrics


def preference_settings(spec: RunSpec) -> PreferenceLossSettings | None:
    """The loss of a policy on pairs or labelled responses; None for every other kind of run."""
    chosen = spec.preference or PreferenceSpec()
    if spec.kind == "kto":
        return KtoSettings(chosen.beta, chosen.desirable_weight, chosen.undesirable_weight)
    if spec.kind == "reward_model" or not spec.trains_pairs:
        return None
    loss = cast("Literal['dpo', 'ipo', 'simpo', 'orpo']", spec.kind)
    return PreferenceSettings(loss, chosen.beta, chosen.margin, chosen.label_smoothing)


def weighed_by(
    batch: Batch, present: Callable[[], LogProbs], base: Callable[[], LogProbs] | None, settings: PreferenceLossSettings
) -> WeighedBatch:
    """`weighed_batch` by a learner that computes the policy's log-probabilities, and with `base` those of the base model too."""
    references: LogProbs | None = None
    if base is not None:
        references = base()
    elif settings.needs_reference:
        references = [sample.reference_logprobs for sample in batch.samples if sample.reference_logprobs is not None]
    return weighed_batch(batch, present(), references, settings)


def weighed_batch(batch: Batch, logprobs: LogProbs, references: LogProbs | None, settings: PreferenceLossSettings) -> WeighedBatch:
    """Weighs the samples of `batch`, of which the samples 2·b and 2·b + 1 are the group b.

    They are a chosen response and a rejected one, or a labelled response and a mismatched one. `logprobs` are the policy's before the
    step, `references` the base model's if the loss compares with it.
    """
    lengths = [len(sample.token_ids) for sample in batch.samples]
    tokens = PairTokens(
        sequences=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        trained=torch.from_numpy(np.concatenate([sample.trainable for sample in batch.samples])),
        pairs=len(lengths) // 2,
        reference_logprobs=None if references is None else torch.from_numpy(np.concatenate(references)).double(),
    )
    policy = torch.from_numpy(np.concatenate(logprobs)).double().requires_grad_()
    loss = _of_labels(policy, tokens, batch, settings) if isinstance(settings, KtoSettings) else _of_pairs(policy, tokens, settings)
    (by_token,) = torch.autograd.grad(loss.total, policy)
    parts = zip(batch.samples, np.split(by_token.numpy(), np.cumsum(lengths)[:-1]), strict=True)
    trained = list(parts)[:: 2 if isinstance(settings, KtoSettings) else 1]
    # In the policy loss each token weighs one part in the step's trainable tokens (`aggregate`), which this takes back.
    tokens_trained = sum(int(sample.trainable.sum()) for sample, _ in trained)
    weighed = [replace(sample, advantages=(-part * tokens_trained).astype(np.float32)) for sample, part in trained]
    return WeighedBatch(Batch(batch.step, weighed), LossMetrics(total=float(loss.total.detach()), kl=loss.kl), loss.metrics)


def _of_pairs(policy: torch.Tensor, tokens: PairTokens, settings: PreferenceSettings) -> _Loss:
    loss = preference_loss(policy, tokens, settings)
    chosen, rejected = float(loss.chosen_logprob), float(loss.rejected_logprob)
    return _Loss(loss.total, 0.0, PreferenceMetrics(float(loss.accuracy), float(loss.margin), chosen, rejected))


def _of_labels(policy: torch.Tensor, tokens: PairTokens, batch: Batch, settings: KtoSettings) -> _Loss:
    desirable = torch.tensor([bool(sample.advantages[0] > 0.0) for sample in batch.samples[::2]])
    loss = kto_loss(policy, tokens, desirable, settings)
    means = [None if math.isnan(mean) else mean for mean in (float(loss.desirable), float(loss.undesirable))]
    margin = None if means[0] is None or means[1] is None else settings.beta * (means[0] - means[1])
    return _Loss(loss.total, float(loss.kl), PreferenceMetrics(None, margin, *means))
