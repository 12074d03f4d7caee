"""The policy loss of GRPO and its kin over the response tokens of a micro-batch, given their log-probabilities.

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
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_floats, require

PROXIMAL_WEIGHT_LIMIT: Final = 2.0
"""Bound of pi_prox / mu in the decoupled loss."""
LOG_RATIO_LIMIT: Final = 20.0
"""Beyond this a log-ratio is cut and has no gradient: one token must not overflow the step's sum."""

_CHOICES: Final = {"importance": ("behaviour", "decoupled"), "objective": ("clip", "cispo"), "level": ("token", "sequence")}


@dataclass(frozen=True, slots=True)
class PolicyTokens:
    """What is known of N response tokens; floats are `[N]`. Where both weights are 0 the rest may hold anything, NaN too."""

    behaviour_logprobs: Tensor
    """Log-probabilities under the policy that sampled them."""
    advantages: Tensor
    weights: Tensor
    """Share of the token in the step's mean; 0 for tokens that are not trained."""
    entropy_weights: Tensor
    """1 / (trainable tokens of the step); 0 for tokens that are not trained."""
    reference_logprobs: Tensor | None = None
    """Log-probabilities under the base model; needed when the KL coefficient is not 0."""
    sequences: Tensor | None = None
    """int64 `[N]`: the number, from 0 on, of the sequence that each token is of; needed for `level="sequence"`."""

    @property
    def used(self) -> Tensor:
        """Which tokens count, bool `[N]`."""
        return (self.weights != 0.0) | (self.entropy_weights != 0.0)

    def at(self, rows: Tensor | slice) -> PolicyTokens:
        """Some of the tokens."""
        return PolicyTokens(*(None if part is None else part[rows] for part in self._parts()))  # type: ignore[arg-type]

    def check(self, count: int, settings: PolicySettings, like: Tensor) -> None:
        """Raises ValueError that names the part which does not fit `count` tokens on the device of `like`, or is missing."""
        for field, part in zip(fields(self), self._parts(), strict=True):
            if part is not None and field.name != "sequences":
                check_floats(f"tokens.{field.name}", part, (count,), like)
        require(
            self.reference_logprobs is not None or not settings.kl,
            "tokens.reference_logprobs",
            "are missing and the KL term needs them; start the reference service or set the KL coefficient to 0",
        )
        if settings.level == "sequence":
            fits = self.sequences is not None and self.sequences.dtype == torch.int64 and self.sequences.shape == (count,)
            require(fits, "tokens.sequences", f'level="sequence" needs the number of each token\'s sequence; pass int64 ({count},)')

    def _parts(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What is optimised; see the table of this module."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    """A ratio stays in [1 - clip_low, 1 + clip_high]; CISPO uses the upper bound alone."""
    importance: Literal["behaviour", "decoupled"] = "behaviour"
    """"behaviour" clips pi / mu. "decoupled" (Hilton et al. 2021, arXiv:2110.00641) clips pi / pi_prox, where pi_prox is the
    policy before this step, and multiplies by min(pi_prox / mu, 2)."""
    objective: Literal["clip", "cispo"] = "clip"
    """"cispo" multiplies the log-probability by the clipped ratio, which has no gradient."""
    level: Literal["token", "sequence"] = "token"
    """"sequence" takes one ratio a sequence, the geometric mean of its tokens' (GSPO)."""
    kl: float = 0.0
    """Coefficient of the k3 KL to the base model."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""
    allow_nan: bool = False
    """Lets NaN through to loss and gradients, for a caller that looks there; otherwise it is an error."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            given = getattr(self, name)
            require(given in known, name, f"is {given!r}; pass one of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A micro-batch's share of the step's loss, and what to show of it. All but `total` is detached."""

    total: Tensor
    """The one to differentiate: policy + kl_coefficient · kl - entropy_coefficient · entropy."""
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    ratios: Tensor
    """pi / mu by token, `[N]`, 1 where the token is not used."""
    logprobs: Tensor
    """`[N]`, 0 where the token is not used."""
    entropies: Tensor
    """`[N]`, 0 where the token is not used."""
    ratio: RatioSummary


@dataclass(frozen=True, slots=True)
class RatioSummary:
    """Of the ratios, scalars; means are by `entropy_weights`."""

    mean: Tensor
    least: Tensor
    """At most 1."""
    most: Tensor
    """At least 1."""
    clipped_low: Tensor
    """Share of tokens below 1 - clip_low."""
    clipped_high: Tensor
    """Share of tokens above 1 + clip_high."""


def policy_loss(logprobs: Tensor, entropies: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> PolicyLoss:
    """Clipped policy loss, k3 KL to the base model and entropy bonus; logprobs and entropies are float `[N]`, in nats.

    Raises ValueError when what `settings` need is missing from `tokens`.
    """
    tokens.check(len(logprobs), settings, logprobs)
    used = tokens.used
    clean = _clean(tokens, used)
    logprobs, entropies = torch.where(used, logprobs, 0.0), torch.where(used, entropies, 0.0)
    return policy_loss_of_used(logprobs, entropies, clean, settings)


def policy_loss_of_used(logprobs: Tensor, entropies: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> PolicyLoss:
    """The same for checked tokens that are all used, or hold finite numbers where they are not."""
    terms = policy_terms(logprobs, entropies, tokens, settings)
    ratios = terms.log_ratio.detach().exp()
    return PolicyLoss(
        total=terms.total,
        policy=terms.policy.detach(),
        kl=terms.kl.detach(),
        entropy=terms.entropy.detach(),
        ratios=ratios,
        logprobs=logprobs.detach(),
        entropies=entropies.detach(),
        ratio=_summary(ratios, tokens.entropy_weights, settings),
    )


class PolicyTerms(NamedTuple):
    """What the loss is made of."""

    total: Tensor
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    log_ratio: Tensor
    """Of pi / mu, `[N]`, within LOG_RATIO_LIMIT."""


def policy_terms(logprobs: Tensor, entropies: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> PolicyTerms:
    """Of tokens as `policy_loss_of_used` has them."""
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


def _summary(ratios: Tensor, shares: Tensor, settings: PolicySettings) -> RatioSummary:
    least, most = torch.cat((ratios, ratios.new_ones(1))).aminmax()
    low, high = ratios < 1.0 - settings.clip_low, ratios > 1.0 + settings.clip_high
    return RatioSummary((ratios * shares).sum(), least, most, (low * shares).sum(), (high * shares).sum())


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's unbiased, non-negative estimate of KL(pi || reference), by token (joschu.net/blog/kl-approx.html)."""
    log_ratio = _bounded(reference - logprobs)
    return log_ratio.expm1() - log_ratio


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


def _gain(logprobs: Tensor, log_ratio: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> Tensor:
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


def _clean(tokens: PolicyTokens, used: Tensor) -> PolicyTokens:
    parts = {
        name: part.where(used, 0)
        for name in ("behaviour_logprobs", "advantages", "reference_logprobs", "sequences")
        if (part := getattr(tokens, name)) is not None
    }
    return replace(tokens, **parts)


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
