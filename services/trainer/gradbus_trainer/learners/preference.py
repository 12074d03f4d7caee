"""Preference learning as a weighted policy loss.

A loss of pairs depends on the log-probabilities of all tokens of both responses. So a step first computes these without a gradient, and the
loss from them with its derivative by each token, on the CPU. The policy loss with the negative derivative in place of advantages, and
without a ratio, then has the loss's gradient, whatever the micro-batches and whoever computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gradbus.spec import PreferenceSpec, RunSpec
from gradbus_kernels.operators import PairTokens, PreferenceSettings, preference_loss
from gradbus_trainer.learners.base import LossMetrics, PreferenceMetrics, StepMetrics
from gradbus_trainer.step.batch import Batch

LogProbs = Sequence[NDArray[np.float32]]
"""Of each sample's tokens, `[T]`."""


@dataclass(frozen=True, slots=True)
class WeighedPairs:
    """The batch of a step with what the policy loss needs in place of advantages, and the loss of its pairs."""

    batch: Batch
    loss: float
    metrics: PreferenceMetrics

    def metrics_of(self, step: StepMetrics) -> StepMetrics:
        """The metrics of the step that trained the batch, with the loss of the pairs in place of the policy loss."""
        return replace(step, loss=LossMetrics(total=self.loss, entropy=step.loss.entropy), preference=self.metrics)


def preference_settings(spec: RunSpec) -> PreferenceSettings | None:
    """The loss of a policy on pairs; None for every other kind of run."""
    if spec.kind == "reward_model" or not spec.trains_pairs:
        return None
    chosen = spec.preference or PreferenceSpec()
    loss = cast("Literal['dpo', 'ipo', 'simpo', 'orpo']", spec.kind)
    return PreferenceSettings(loss, chosen.beta, chosen.margin, chosen.label_smoothing)


def weighed_pairs(batch: Batch, logprobs: LogProbs, references: LogProbs | None, settings: PreferenceSettings) -> WeighedPairs:
    """Weighs the samples of `batch`, of which the samples 2·b and 2·b + 1 are pair b: the chosen response and the rejected one.

    `logprobs` are the policy's before the step, `references` the base model's if the loss compares with it.
    """
    lengths = [len(sample.token_ids) for sample in batch.samples]
    tokens = PairTokens(
        sequences=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        trained=torch.from_numpy(np.concatenate([sample.trainable for sample in batch.samples])),
        pairs=len(lengths) // 2,
        reference_logprobs=None if references is None else torch.from_numpy(np.concatenate(references)).double(),
    )
    policy = torch.from_numpy(np.concatenate(logprobs)).double().requires_grad_()
    loss = preference_loss(policy, tokens, settings)
    (by_token,) = torch.autograd.grad(loss.total, policy)
    # In the policy loss each token weighs one part in the step's trainable tokens (`aggregate`), which this takes back.
    gains = -by_token.numpy() * sum(batch.trainable_counts)
    parts = np.split(gains.astype(np.float32), np.cumsum(lengths)[:-1])
    weighed = [replace(sample, advantages=part) for sample, part in zip(batch.samples, parts, strict=True)]
    chosen, rejected = float(loss.chosen_logprob), float(loss.rejected_logprob)
    metrics = PreferenceMetrics(float(loss.accuracy), float(loss.margin), chosen, rejected)
    return WeighedPairs(Batch(batch.step, weighed), float(loss.total.detach()), metrics)
