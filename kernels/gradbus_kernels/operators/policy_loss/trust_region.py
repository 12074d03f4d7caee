"""The trust regions of the policy loss: how much a token gains as the policy moves away from the one that it is compared with.

One function a region; nothing else knows these formulas. With rho = pi / mu the gradient of a gain is h · A · grad log pi:

| region | gain | h |
|---|---|---|
| clip (Schulman et al. 2017, arXiv:1707.06347) | min(rho · A, clip(rho, 1 - low, 1 + high) · A) | rho; 0 where clipped |
| clip with dual = c (Ye et al. 2020, arXiv:1912.09729) | where A < 0 at least c · A | also 0 where A < 0 and rho > c |
| log_clip (GMPO, arXiv:2507.20673) | rho · A, rho of log-ratios of at most high if A > 0, else at least -low | rho; 0 where clipped |
| cap (CISPO, MiniMax 2025, arXiv:2506.13585) | sg(clip(rho, 1 - low, 1 + high)) · A · log pi | clip(rho, 1 - low, 1 + high) |
| band (IcePop, arXiv:2510.18855; SAO, arXiv:2607.07508) | rho · A inside [1 - low, 1 + high], else 0 | rho inside, else 0 |
| mass (DPPO, arXiv:2602.04879) | rho · A; 0 if A > 0 and pi - mu > high, or A < 0 and mu - pi > low | rho, or 0 |
| soft (SAPO, Qwen 2025, arXiv:2511.20347) | 4 / tau · s(tau · (rho - 1)) · A, s the sigmoid | 4 · s · (1 - s) · rho |
| gamma (VESPO, arXiv:2602.10693) | sg(phi(rho)) · A · log pi, phi = e^lambda · rho^k · e^(-lambda · rho) | phi |
| none | rho · A | rho |

A gain is multiplied by 0 where it is dropped: a NaN stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.policy_loss.inputs import PolicySettings


class PolicyChange(NamedTuple):
    """How the policy has moved, by token `[N]`."""

    ratio: Tensor
    """pi / mu of the token or of its whole sequence, or pi / pi_prox."""
    logprobs: Tensor
    anchor_logprobs: Tensor
    """Log-probabilities under mu, or pi_prox; they have no gradient."""
    advantages: Tensor


class Gain(NamedTuple):
    """What tokens gain, `[N]`; the loss is the negative of the weighted sum."""

    value: Tensor
    low: Tensor
    """bool: tokens whose ratio or probability is bounded below."""
    high: Tensor
    """bool: tokens whose ratio or probability is bounded above."""


def clip(change: PolicyChange, settings: PolicySettings) -> Gain:
    """The pessimistic of two gains, with the ratio and with the clipped one."""
    ratio, advantages = change.ratio, change.advantages
    clipped = ratio.clamp(1.0 - settings.low, 1.0 + settings.high)
    value = torch.minimum(ratio * advantages, clipped * advantages)
    low, high = _outside(ratio, settings)
    if settings.dual is not None:
        negative = advantages < 0.0
        value = torch.where(negative, torch.maximum(value, settings.dual * advantages), value)
        high = high | (negative & (ratio > settings.dual))
    return Gain(value, low, high)


def log_clip(change: PolicyChange, settings: PolicySettings) -> Gain:
    """The gain with the ratio of bounded log-ratios, see `one_sided`. The shares count single tokens."""
    moved = (change.logprobs - change.anchor_logprobs).detach()
    low = (change.advantages <= 0.0) & (moved < -settings.low)
    high = (change.advantages > 0.0) & (moved > settings.high)
    return Gain(change.ratio * change.advantages, low, high)


def one_sided(log_ratio: Tensor, advantages: Tensor, settings: PolicySettings) -> Tensor:
    """Each token's log-ratio `[N]`, bounded in the direction in which its advantage moves it, before those of a sequence are joined.

    So a token that went too far loses its own gradient, and the others of its sequence keep theirs.
    """
    return torch.where(advantages > 0.0, log_ratio.clamp(max=settings.high), log_ratio.clamp(min=-settings.low))


def cap(change: PolicyChange, settings: PolicySettings) -> Gain:
    """The log-probability times the bounded ratio, which has no gradient: no token loses its gradient."""
    bounded = change.ratio.detach().clamp(1.0 - settings.low, 1.0 + settings.high)
    return Gain(bounded * change.advantages * change.logprobs, *_outside(change.ratio, settings))


def band(change: PolicyChange, settings: PolicySettings) -> Gain:
    """Nothing outside of the bounds, whatever the sign of the advantage."""
    low, high = _outside(change.ratio, settings)
    return _dropped(change, low, high)


def mass(change: PolicyChange, settings: PolicySettings) -> Gain:
    """Bounds the probability that has moved, so a rare token may change its ratio by much."""
    moved = change.logprobs.detach().exp() - change.anchor_logprobs.exp()
    low = (change.advantages < 0.0) & (-moved > settings.low)
    high = (change.advantages > 0.0) & (moved > settings.high)
    return _dropped(change, low, high)


def soft(change: PolicyChange, settings: PolicySettings) -> Gain:
    """A sigmoid in place of the clip: the gradient fades, and is that of `unbounded` at a ratio of 1."""
    ratio, advantages = change.ratio, change.advantages
    temperature = _by_sign(advantages, *settings.curves.temperatures)
    return unbounded(torch.sigmoid(temperature * (ratio - 1.0)) * 4.0 / temperature * advantages)


def gamma(change: PolicyChange, settings: PolicySettings) -> Gain:
    """The log-probability times a weight of the ratio, which has no gradient: 1 at a ratio of 1, fading to 0 on both sides.

    It is that of TRL's `loss_type="vespo"`, which is a function of the product of a sequence's ratios.
    """
    ratio, advantages = change.ratio.detach(), change.advantages
    power, rate = (_by_sign(advantages, *pair) for pair in zip(*settings.curves.gamma, strict=True))
    weight = (rate + power * ratio.log() - rate * ratio).exp()  # a power of a large ratio would be infinite by itself
    return unbounded(weight * advantages * change.logprobs)


def none(change: PolicyChange, settings: PolicySettings) -> Gain:  # noqa: ARG001 -- the regions share a signature
    """Importance sampling alone."""
    return unbounded(change.ratio * change.advantages)


TRUST_REGIONS: Final[Mapping[str, Callable[[PolicyChange, PolicySettings], Gain]]] = {
    "clip": clip,
    "log_clip": log_clip,
    "cap": cap,
    "band": band,
    "mass": mass,
    "soft": soft,
    "gamma": gamma,
    "none": none,
}


def unbounded(value: Tensor) -> Gain:
    """A gain that nothing bounds."""
    nowhere = torch.zeros_like(value, dtype=torch.bool)
    return Gain(value, nowhere, nowhere)


def _by_sign(advantages: Tensor, positive: float, other: float) -> Tensor:
    return torch.where(advantages > 0.0, torch.full_like(advantages, positive), other)


def _outside(ratio: Tensor, settings: PolicySettings) -> tuple[Tensor, Tensor]:
    return ratio < 1.0 - settings.low, ratio > 1.0 + settings.high


def _dropped(change: PolicyChange, low: Tensor, high: Tensor) -> Gain:
    value = change.ratio * change.advantages
    return Gain(value * (~(low | high)).to(value.dtype), low, high)
