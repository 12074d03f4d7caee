"""The terms of the policy loss of GRPO and its variants, by response token of a micro-batch.

Everything is a weighted sum over N tokens. The weights come from the whole step, so the losses of its micro-batches add
up to the step's loss, whatever their number. Weights and settings make the variant:

| variant | settings | weights |
|---|---|---|
| GRPO (Shao et al. 2024, arXiv:2402.03300, equation 3) | `trust_region="clip"` | `token_weights(counts, "sequence")` |
| DAPO (Yu et al. 2025, arXiv:2503.14476) | a larger `high` | `token_weights(counts, "token")` |
| Dr.GRPO (Liu et al. 2025, arXiv:2503.20783) | as GRPO | `token_weights(counts, "constant", longest)` |
| CISPO (MiniMax 2025, arXiv:2506.13585) | `trust_region="cap"`, `low=1` | `token_weights(counts, "token")` |
| GSPO (Zheng et al. 2025, arXiv:2507.18071) | `ratio="sequence"`, `low=3e-4`, `high=4e-4` | `token_weights(counts, "sequence")` |
| LUSPO (arXiv:2602.05261) | `ratio="sequence"`, `low=2e-3`, `high=2.5e-3` | `token_weights(counts, "constant", longest)` |
| GMPO (arXiv:2507.20673) | `trust_region="log_clip"`, `ratio="sequence"`, `low=high=0.4` | `token_weights(counts, "sequence")` |
| RLOO (Ahmadian et al. 2024, arXiv:2402.14740) | `ratio="product"`, `trust_region="none"` | `token_weights(counts, "sequence")` |
| REINFORCE; GPG (Chu et al. 2025, arXiv:2504.02546) | `importance="none"` | `token_weights(counts, "token")` |
| DRO (arXiv:2405.19107, by token), with beta = 2 drift | `importance="none"`, `drift=0.025` | `token_weights(counts, "token")` |
| SAPO (Qwen 2025, arXiv:2511.20347) | `trust_region="soft"` | `token_weights(counts, "sequence")` |
| VESPO (arXiv:2602.10693) | `trust_region="gamma"`, `ratio="product"` | `token_weights(counts, "token")` |
| DPPO (arXiv:2602.04879; prime-rl adds `drift=1e-3`) | `trust_region="mass"` | `token_weights(counts, "token")` |
| SAO's policy (arXiv:2607.07508), IcePop (arXiv:2510.18855) | `trust_region="band"` | `token_weights(counts, "token")` |
| VAPO (arXiv:2504.05118) | `high=0.28`, `nll=0.1` | `token_weights(counts, "token")` |
| dual-clip PPO (Ye et al. 2020, arXiv:1912.09729) | `dual=3` | any |
| DeepSeek-V3.2 (arXiv:2512.02556) | `off_policy_mask`, `kl_estimator="unbiased"` | `token_weights(counts, "sequence")` |
| decoupled PPO (Hilton et al. 2021, arXiv:2110.00641) | `importance="decoupled"` | any |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import require
from gradbus_kernels.operators.policy_loss.divergence import divergence
from gradbus_kernels.operators.policy_loss.inputs import PolicySettings, PolicyTokens
from gradbus_kernels.operators.policy_loss.log_ratio import bounded, kept, of_sequences
from gradbus_kernels.operators.policy_loss.trust_region import TRUST_REGIONS, Gain, PolicyChange, one_sided, unbounded

PROXIMAL_WEIGHT_LIMIT: Final = 2.0
"""Bound of pi_prox / mu in the decoupled loss."""


class PolicyTerms(NamedTuple):
    """The terms of the loss, scalars, and what they are of by token."""

    total: Tensor
    policy: Tensor
    kl: Tensor
    drift: Tensor
    nll: Tensor
    entropy: Tensor
    log_ratio: Tensor
    """Of pi / mu, `[N]`, within LOG_RATIO_LIMIT."""
    gain: Gain
    """Before the masks of sequences."""


def policy_terms(logprobs: Tensor, entropies: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> PolicyTerms:
    """The terms for tokens as in `policy_loss_of_used`, of which `PolicyLoss.total` is made.

    With `settings.needs_sequences` the tokens must be whole sequences; otherwise any of them may be computed apart.
    """
    log_ratio = bounded(logprobs - tokens.behaviour_logprobs)
    gain = _gain(logprobs, log_ratio, tokens, settings)
    mask = kept(log_ratio, tokens, settings)
    policy = -((gain.value if mask is None else gain.value * mask) * tokens.weights).sum()
    total = policy
    kl = drift = nll = torch.zeros_like(policy)
    if settings.kl and tokens.reference_logprobs is not None:
        kl = (divergence(logprobs, tokens.reference_logprobs, log_ratio, settings.kl_estimator) * tokens.weights).sum()
        total = total + settings.kl * kl
    if settings.drift:
        drift = (log_ratio.square() * tokens.weights).sum()
        total = total + settings.drift * drift
    if settings.nll and tokens.nll_weights is not None:
        nll = -(logprobs * tokens.nll_weights).sum()
        total = total + settings.nll * nll
    entropy = (entropies * tokens.entropy_weights).sum()
    if settings.entropy:
        total = total - settings.entropy * entropy
    return PolicyTerms(total, policy, kl, drift, nll, entropy, log_ratio, gain)


def _gain(logprobs: Tensor, log_ratio: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> Gain:
    """What the trust region leaves of rho · A, by token, with rho = pi / mu or pi / pi_prox; see `PolicySettings`."""
    if settings.importance == "none":
        return unbounded(tokens.advantages * logprobs)
    anchor, outer = tokens.behaviour_logprobs, None
    if settings.importance == "decoupled":
        # While pi_prox is pi itself, the ratio is 1 and only its gradient counts.
        anchor = logprobs.detach() if tokens.proximal_logprobs is None else tokens.proximal_logprobs
        outer = bounded(anchor - tokens.behaviour_logprobs).exp().clamp(max=PROXIMAL_WEIGHT_LIMIT)
        log_ratio = bounded(logprobs - anchor)
    if settings.trust_region == "log_clip":
        log_ratio = one_sided(log_ratio, tokens.advantages, settings)
    if settings.ratio != "token":
        log_ratio = of_sequences(log_ratio, tokens, settings.ratio)
    gain = TRUST_REGIONS[settings.trust_region](PolicyChange(log_ratio.exp(), logprobs, anchor, tokens.advantages), settings)
    return gain if outer is None else gain._replace(value=gain.value * outer)


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
