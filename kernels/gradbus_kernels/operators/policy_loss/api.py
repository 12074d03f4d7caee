"""The policy loss over the response tokens of a micro-batch, given their log-probabilities, with its statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradbus_kernels.operators.policy_loss.inputs import PolicySettings, PolicyTokens
from gradbus_kernels.operators.policy_loss.terms import policy_terms
from gradbus_kernels.operators.policy_loss.trust_region import Gain


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A micro-batch's share of the step's loss, with its statistics. All but `total` is detached."""

    total: Tensor
    """To be differentiated: policy + settings.kl · kl + settings.drift · drift + settings.nll · nll - settings.entropy · entropy."""
    policy: Tensor
    kl: Tensor
    drift: Tensor
    nll: Tensor
    entropy: Tensor
    ratios: Tensor
    """pi / mu by token, `[N]`, 1 for a token that is not used."""
    logprobs: Tensor
    """`[N]`, 0 for a token that is not used."""
    entropies: Tensor
    """`[N]`, 0 for a token that is not used."""
    ratio: RatioSummary
    distance: Tensor | None = None
    """Total variation between pi and mu, by `entropy_weights`; None where nothing but the sampled tokens is known of mu."""


@dataclass(frozen=True, slots=True)
class RatioSummary:
    """Statistics of the ratios, scalars; means are weighted by `entropy_weights`."""

    mean: Tensor
    least: Tensor
    """At most 1."""
    most: Tensor
    """At least 1."""
    clipped_low: Tensor
    """Share of tokens whose ratio (with a ratio of sequences their sequence's) or change in probability the trust region bounds below."""
    clipped_high: Tensor
    """The same above."""


def policy_loss(logprobs: Tensor, entropies: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> PolicyLoss:
    """Policy loss, KL to the base model, drift, likelihood and entropy bonus; logprobs and entropies are float `[N]`, in nats.

    Raises ValueError when `tokens` lack a part that `settings` need.
    """
    tokens.check(len(logprobs), settings, logprobs)
    used = tokens.used
    clean = _clean(tokens, used)
    logprobs, entropies = torch.where(used, logprobs, 0.0), torch.where(used, entropies, 0.0)
    return policy_loss_of_used(logprobs, entropies, clean, settings)


def policy_loss_of_used(logprobs: Tensor, entropies: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> PolicyLoss:
    """`policy_loss` for checked tokens, in which unused tokens hold finite values."""
    terms = policy_terms(logprobs, entropies, tokens, settings)
    ratios = terms.log_ratio.detach().exp()
    return PolicyLoss(
        total=terms.total,
        policy=terms.policy.detach(),
        kl=terms.kl.detach(),
        drift=terms.drift.detach(),
        nll=terms.nll.detach(),
        entropy=terms.entropy.detach(),
        ratios=ratios,
        logprobs=logprobs.detach(),
        entropies=entropies.detach(),
        ratio=_summary(ratios, tokens.entropy_weights, terms.gain),
    )


def _summary(ratios: Tensor, shares: Tensor, gain: Gain) -> RatioSummary:
    least, most = torch.cat((ratios, ratios.new_ones(1))).aminmax()
    return RatioSummary((ratios * shares).sum(), least, most, (gain.low * shares).sum(), (gain.high * shares).sum())


def _clean(tokens: PolicyTokens, used: Tensor) -> PolicyTokens:
    parts = {
        name: part.where(used, 0)
        for name in ("behaviour_logprobs", "advantages", "reference_logprobs", "sequences", "proximal_logprobs")
        if (part := getattr(tokens, name)) is not None
    }
    return replace(tokens, **parts)
