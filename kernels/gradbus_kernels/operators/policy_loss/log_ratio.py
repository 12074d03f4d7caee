"""Log-ratios of two policies: their bound, those of whole sequences, and the masks that look at these."""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from gradbus_kernels.operators.policy_loss.inputs import PolicySettings, PolicyTokens

LOG_RATIO_LIMIT: Final = 20.0
"""Beyond this a log-ratio is cut and has no gradient: one token must not overflow the step's sum."""


def bounded(log_ratio: Tensor) -> Tensor:
    """The log-ratio within ±LOG_RATIO_LIMIT."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def of_sequences(log_ratio: Tensor, tokens: PolicyTokens, ratio: Literal["sequence", "product"]) -> Tensor:
    """For each token that of its sequence, over the sequence's trained tokens: their mean, or their bounded sum. `[N]`.

    A token's has the gradient of its own log-ratio alone, as large as that of all of its sequence's tokens together. So where these have
    the same advantage and weight the gradient is that of the sequence's ratio, and where they do not, each is moved by its own
    (GSPO-token, arXiv:2507.18071, equation 14).
    """
    if tokens.sequences is None or not len(log_ratio):
        return log_ratio
    trained = (tokens.weights != 0.0).to(log_ratio.dtype)
    fixed = log_ratio.detach()
    sums = log_ratio.new_zeros(2, int(tokens.sequences.max()) + 1)
    total, count = sums.index_add(1, tokens.sequences, torch.stack((fixed * trained, trained)))
    joined = bounded(total) if ratio == "product" else total / count.clamp(min=1.0)
    slope = count * (joined == total) if ratio == "product" else torch.ones_like(count)
    return joined[tokens.sequences] + slope[tokens.sequences] * (log_ratio - fixed)


def kept(log_ratio: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> Tensor | None:
    """1 for a token that gains, 0 for one whose sequence is masked; None without a mask. `log_ratio` is that of pi / mu by token."""
    if settings.sequence_mask is None and settings.off_policy_mask is None:
        return None
    mean = of_sequences(log_ratio.detach(), tokens, "sequence")
    masked = torch.zeros_like(mean, dtype=torch.bool)
    if settings.sequence_mask is not None:
        least, most = settings.sequence_mask
        masked |= (mean.exp() < least) | (mean.exp() > most)
    if settings.off_policy_mask is not None:
        masked |= (tokens.advantages < 0.0) & (-mean > settings.off_policy_mask)
    return (~masked).to(mean.dtype)
