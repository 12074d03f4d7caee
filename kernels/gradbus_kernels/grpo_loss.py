"""The GRPO loss over packed response tokens (Shao et al. 2024, arXiv:2402.03300, equation 3).

Everything is a weighted sum over the N response tokens of a micro-batch. The weights come from the whole step, so the
losses of its micro-batches add up to the step's loss, whatever their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gradbus.spec import AlgorithmSpec

PROXIMAL_WEIGHT_LIMIT = 2.0
"""Bound of pi_prox / mu in the decoupled loss."""
LOG_RATIO_LIMIT = 20.0
"""Beyond this a log-ratio is cut and has no gradient: one token must not overflow the step's sum."""


@dataclass(frozen=True, slots=True)
class PolicyTokens:
    """What the log says of N response tokens; every tensor is float [N]."""

    behaviour_logprobs: torch.Tensor
    """Log-probabilities under the policy that sampled them."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """Share of the token in the step's mean; 0 for tokens that are not trained."""
    entropy_weights: torch.Tensor
    """1 / (trainable tokens of the step); 0 for tokens that are not trained."""
    reference_logprobs: torch.Tensor | None = None
    """Log-probabilities under the base model; needed when the KL coefficient is not 0."""


@dataclass(frozen=True, slots=True)
class GrpoLoss:
    """A micro-batch's share of the step's loss, and what to show of it. Scalars of torch."""

    total: torch.Tensor
    """The one to differentiate: policy + kl_coefficient · kl - entropy_coefficient · entropy."""
    policy: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor
    ratios: torch.Tensor
    """pi / mu, detached, [N]."""


def grpo_loss(logprobs: torch.Tensor, entropy: torch.Tensor, tokens: PolicyTokens, algorithm: AlgorithmSpec) -> GrpoLoss:
    """Clipped policy loss, k3 KL to the base model and entropy bonus; logprobs and entropy are float [N].

    "behaviour" clips pi / mu. "decoupled" (Hilton et al. 2021, arXiv:2110.00641) clips pi / pi_prox, where pi_prox is
    the policy before this step, and multiplies by min(pi_prox / mu, 2). Raises ValueError when a KL is asked for and
    reference log-probabilities are missing.
    """
    mu_ratio = _bounded(logprobs - tokens.behaviour_logprobs).exp()
    if algorithm.importance == "decoupled":
        # One optimiser step a batch: pi_prox is pi itself, so the ratio is 1 and only its gradient counts.
        ratio = (logprobs - logprobs.detach()).exp()
        outer = mu_ratio.detach().clamp(max=PROXIMAL_WEIGHT_LIMIT)
    else:
        ratio, outer = mu_ratio, torch.ones_like(mu_ratio)
    lower, upper = algorithm.clip
    clipped = ratio.clamp(1.0 - lower, 1.0 + upper)
    gain = torch.minimum(ratio * tokens.advantages, clipped * tokens.advantages) * outer
    policy = -_weighted(gain, tokens.weights)
    kl = torch.zeros_like(policy)
    if algorithm.kl:
        kl = _weighted(k3(logprobs, tokens.reference_logprobs), tokens.weights)
    mean_entropy = _weighted(entropy, tokens.entropy_weights)
    total = policy + algorithm.kl * kl - algorithm.entropy * mean_entropy
    return GrpoLoss(total, policy.detach(), kl.detach(), mean_entropy.detach(), mu_ratio.detach())


def k3(logprobs: torch.Tensor, reference: torch.Tensor | None) -> torch.Tensor:
    """Schulman's unbiased, non-negative estimate of KL(pi || reference), by token (joschu.net/blog/kl-approx.html)."""
    if reference is None:
        raise ValueError("the KL term needs reference log-probabilities; start the reference service or set algorithm.kl = 0")
    log_ratio = _bounded(reference - logprobs)
    return log_ratio.expm1() - log_ratio


def token_weights(trainable: Sequence[int], aggregate: Literal["token", "sequence"]) -> list[float]:
    """Weight of each trainable token of the step's sequences, given how many each sequence has; those weights add up to 1.

    "token": every trainable token counts the same (TRL's loss_type "dapo"). "sequence": every sequence that has a
    trainable token counts the same.
    """
    total, sequences = sum(trainable), sum(1 for count in trainable if count)
    if aggregate == "token":
        return [1.0 / total if count else 0.0 for count in trainable]
    return [1.0 / (count * sequences) if count else 0.0 for count in trainable]


def _bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _weighted(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum of values · weights where weights are not 0: what is not trained may hold anything, NaN too."""
    return torch.where(weights != 0.0, values, 0.0).dot(weights)
