"""The preference loss over the response tokens of a micro-batch of pairs, given their log-probabilities, with its statistics."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.preference_loss.inputs import PairTokens, PreferenceSettings
from gradbus_kernels.operators.preference_loss.losses import LOSSES, Scores


class PreferenceLoss(NamedTuple):
    """A micro-batch's share of the update's loss, with its statistics: float64 scalars that add up to the means over the update's pairs.

    All but `total` is detached.
    """

    total: Tensor
    """To be differentiated."""
    chosen_logprob: Tensor
    """Log-probability of the chosen response: the sum over its trained tokens, whatever the loss."""
    rejected_logprob: Tensor
    margin: Tensor
    """Reward margin: beta times the difference of the scores that the loss compares (see the table of `losses`)."""
    accuracy: Tensor
    """Share of pairs with a positive margin; a margin of 0 counts one half."""


def preference_loss(logprobs: Tensor, tokens: PairTokens, settings: PreferenceSettings) -> PreferenceLoss:
    """The loss of DPO, IPO, SimPO or ORPO; logprobs are float `[N]`, in nats. Synchronises with a GPU.

    Sums are float64; the gradient has the dtype of `logprobs`. The losses of an update's micro-batches add up to the update's. Raises
    ValueError when `tokens` are no whole pairs, or lack a part that `settings` need.
    """
    tokens.check(logprobs, settings)
    counts = tokens.counts()
    summed = tokens.sums(logprobs.double(), len(counts))
    scores = summed
    if settings.needs_reference and tokens.reference_logprobs is not None:
        scores = tokens.sums(logprobs.double() - tokens.reference_logprobs, len(counts))
    compared = _by_pair(scores / counts if settings.uses_means else scores)
    chosen, rejected = _by_pair(summed.detach())
    margins = settings.beta * compared.difference.detach()
    return PreferenceLoss(
        total=LOSSES[settings.loss](compared, settings).sum() / tokens.pairs,
        chosen_logprob=chosen.sum() / tokens.pairs,
        rejected_logprob=rejected.sum() / tokens.pairs,
        margin=margins.sum() / tokens.pairs,
        accuracy=torch.heaviside(margins, margins.new_tensor(0.5)).sum() / tokens.pairs,
    )


def _by_pair(sequences: Tensor) -> Scores:
    return Scores(*sequences.view(-1, 2).unbind(1))
