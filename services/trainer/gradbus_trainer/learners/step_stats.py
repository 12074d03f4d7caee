"""What a step's micro-batches show, added up."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradbus_kernels.operators import PolicyLoss, PolicyTokens
from gradbus_trainer.learners.base import LossMetrics, RatioMetrics, StepMetrics
from gradbus_trainer.learners.phases import Phase
from gradbus_trainer.step.batch import Batch


class StepStats:
    """Sums over the micro-batches of a step; their weights make these means over the step."""

    def __init__(self) -> None:
        self.sums = torch.zeros(8, dtype=torch.float64)
        """Add those of other ranks to it."""
        self.largest_ratio = torch.zeros(1, dtype=torch.float64)
        """Take the largest of all ranks."""

    def add(self, loss: PolicyLoss, tokens: PolicyTokens) -> None:
        """One more micro-batch."""
        used = tokens.entropy_weights != 0.0
        if not used.any():
            return
        ratios, share = loss.ratios[used], tokens.entropy_weights[used]
        means = (loss.ratio.mean, loss.ratio.clipped_low, loss.ratio.clipped_high, share.dot(ratios.log().abs()))
        self.sums += torch.stack((loss.total.detach(), loss.policy, loss.kl, loss.entropy, *means)).cpu()
        self.largest_ratio.clamp_(min=float(ratios.max()))

    def metrics(self, batch: Batch, learning_rate: float, grad_norm: float, phases: Sequence[Phase]) -> StepMetrics:
        """What the step that trained `batch` did."""
        mean, low, high, difference = self.sums[4:].tolist()
        return StepMetrics(
            noop=False,
            learning_rate=learning_rate,
            tokens=sum(batch.trainable_counts),
            grad_norm=grad_norm,
            loss=LossMetrics(*self.sums[:4].tolist()),
            ratio=RatioMetrics(mean, float(self.largest_ratio), low, high, difference),
            phases=phases,
        )
