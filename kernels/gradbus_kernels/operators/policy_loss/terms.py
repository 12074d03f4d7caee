"""The terms of the policy loss of GRPO and its variants, by response token of a micro-batch.

Everything is a weighted sum over N tokens. The weights come from the whole step, so the losses of its micro-batches add
up to the step's loss, whatever their number. Weights and settings make the variant:

| variant | settings | weights |
|---|---|---|
| GRPO (Shao et al. 2024, arXiv:2402.03300, equation 3) | `objective="clip"` | `token_weights(counts, "sequence")` |
| DAPO (Yu et al. 2025, arXiv:2503.14476) | a larger `clip_high` | `token_weights(counts, "token")` |
| Dr.GRPO (Liu et al. 2025, arXiv:2503.20783) | `objective="clip"` | `token_weights(counts, "constant", longest)` |
| CISPO (MiniMax 2025, arXiv:2506.13585) | `objective="cispo"` | `token_weights(counts, "token")` |
| GSPO (Zheng et al. 2025, arXiv:2507.18071) | `level="sequence"` | `token_weights(counts, "sequence")` |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import require
from gradbus_kernels.operators.policy_loss.inputs import PolicySettings, PolicyTokens

PROXIMAL_WEIGHT_LIMIT: Final = 2.0
"""Bound of pi_prox / mu in the decoupled loss."""
LOG_RATIO_LIMIT: Final = 20.0
"""Beyond this a log-ratio is cut and has no gradient: one token must not overflow the step's sum."""


class PolicyTerms(NamedTuple):
    """The terms of the loss, scalars, and the log-ratios."""

    total: Tensor
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    log_ratio: Tensor
    """Of pi / mu, `[N]`, within LOG_RATIO_LIMIT."""


def policy_terms(logprobs: Tensor, entropies: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> PolicyTerms:
    """The terms for tokens as in `policy_loss_of_used`: total = policy + settings.kl · kl - settings.entropy · entropy."""
    log_ratio = _bounded(logprobs - tokens.behaviour_logprobs)
    policy = -(_gain(logprobs, log_ratio, tokens, settings) * tokens.weights).sum()
    total, kl = policy, torch.zeros_like(policy)
    if settings.kl and tokens.reference_logprobs is not None:
        kl = (k3(logprobs, tokens.reference_logprobs) * tokens.weights).sum()
        total = total + settings.kl * kl
    entropy = (entropies * tokens.entropy_weights).sum()
    if settings.entropy:
        total = total - settings.entropy * entropy
    return PolicyTerms(total, policy, kl, entropy, log_ratio)


def _gain(logprobs: Tensor, log_ratio: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> Tensor:
    """By token: min(rho · A, clip(rho, 1 - low, 1 + high) · A) for "clip", rho = pi / mu or pi / pi_prox; see `PolicySettings`."""
    outer: Tensor | None = None
    if settings.importance == "decoupled":
        # One optimiser step a batch: pi_prox is pi itself, so the ratio is 1 and only its gradient counts.
        outer = log_ratio.detach().exp().clamp(max=PROXIMAL_WEIGHT_LIMIT)
        log_ratio = logprobs - logprobs.detach()
    if settings.level == "sequence":
        log_ratio = _by_sequence(log_ratio, tokens)
    ratio = log_ratio.exp()
    if settings.objective == "cispo":
        gain = ratio.detach().clamp(max=1.0 + settings.clip_high) * tokens.advantages * logprobs
    else:
        clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
        gain = torch.minimum(ratio * tokens.advantages, clipped * tokens.advantages)
    return gain if outer is None else gain * outer


def _by_sequence(log_ratio: Tensor, tokens: PolicyTokens) -> Tensor:
    """The mean log-ratio of each token's sequence, over its trained tokens."""
    if tokens.sequences is None or not len(log_ratio):
        return log_ratio
    trained = (tokens.weights != 0.0).to(log_ratio.dtype)
    sums = log_ratio.new_zeros(2, int(tokens.sequences.max()) + 1)
    sums = sums.index_add(1, tokens.sequences, torch.stack((log_ratio * trained, trained)))
    return (sums[0] / sums[1].clamp(min=1.0))[tokens.sequences]


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's unbiased, non-negative estimate of KL(pi || reference), by token (joschu.net/blog/kl-approx.html)."""
    log_ratio = _bounded(reference - logprobs)
    return log_ratio.expm1() - log_ratio


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def token_weights(trainable: Sequence[int], aggregate: Literal["token", "sequence", "constant"], longest: int | None = None) -> list[float]:
    """Weight of each trainable token of the step's sequences, given how many each sequence has.

    "token": every trainable token counts the same (TRL's loss_type "dapo"). "sequence": every sequence that has a
    trainable token counts the same. Both add up to 1. "constant": every token counts 1 / (sequences · longest), where
    `longest` is the most tokens a sequence may have (TRL's "dr_grpo"). Raises ValueError when `longest` is missing.
    """
    total, sequences = sum(trainable), sum(1 for count in trainable if count)
    if aggregate == "token":
        return [1.0 / total if count else 0.0 for count in trainable]
    if aggregate == "sequence":
        return [1.0 / (count * sequences) if count else 0.0 for count in trainable]
    require(longest is not None and longest > 0, "longest", f'is {longest}; aggregate "constant" needs the most tokens of a sequence')
    return [1.0 / (len(trainable) * longest) if count and longest else 0.0 for count in trainable]
