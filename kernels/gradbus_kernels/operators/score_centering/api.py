"""Score centring (arXiv:2609.20807): what is taken from a token's score, so that its mean under the policy that sampled is 0.

A token a that mu sampled moves the policy p by A · w(rho_a) · grad log p_a, with rho = p / mu. Where w is not rho itself, because it is
bounded or left out, the mean of w · grad log p under mu is not 0: the policy is moved also by an advantage that is the same for all tokens.
With the sampler's k most likely tokens H and their probabilities q this mean is

    sum_{v in H} (q_v · w(rho_v) - alpha · p_v) · grad log p_v,    alpha = kappa · w(1 / kappa),  kappa = (1 - q_H) / (1 - p_H)

where all other tokens are taken to have one ratio, 1 / kappa: it is exact if H has all tokens but one. The factors have no gradient. It
is taken from each token, also from one that the trust region drops. With w = rho it is 0.

The derivative by the logits is known with these, so the forward pass makes the gradients too, tile by tile.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_head, require
from gradbus_kernels.operators.base.attached import Attached
from gradbus_kernels.operators.base.softcap import Softcapped, softcapped
from gradbus_kernels.operators.distillation_loss.api import TeacherRows
from gradbus_kernels.operators.distillation_loss.tiles import HeadGradients, logprob_tiles
from gradbus_kernels.operators.policy_loss.inputs import PolicySettings, PolicyTokens

CENTRED_REGIONS: Final = ("none", "cap", "band")
"""Trust regions whose weight is a function of a token's ratio alone, whatever its advantage is."""
_LEAST_MASS: Final = 1e-30
"""Of all tokens that are not in a row."""


class ScoreCentering(NamedTuple):
    """A micro-batch's share of what is added to the step's loss."""

    total: Tensor
    """To be differentiated: the sum of weight · advantage · the mean's factors · log p; its value says nothing."""
    distance: Tensor
    """Total variation between the policy that sampled and this one, half the sum of |q - p|, mean by `entropy_weights`; detached."""


def linear_score_centering(
    hidden: Tensor,
    weight: Tensor,
    rows: TeacherRows,
    tokens: PolicyTokens,
    settings: PolicySettings,
    *,
    temperature: float | Softcapped = 1.0,
) -> ScoreCentering:
    """What is added to `linear_grpo_loss` of the same arguments. `rows` are those of the policy that sampled, at the same temperature.

    `hidden` float `[N, H]`, `weight` `[V, H]` of the same dtype. Tokens that are not used cost nothing and may hold anything. The total is
    differentiable in hidden and weight; its backward pass gives its gradients away and can run once. Both results are float32 (float64
    for float64). Raises ValueError for arguments that do not fit. NaN in what is used comes out as NaN.
    """
    scaled = Softcapped.of(temperature)
    _check(hidden, weight, rows, tokens, settings, scaled)
    places = tokens.used.nonzero().squeeze(1)
    of_used = TeacherRows(rows.ids[places], rows.logprobs[places])
    used = _Used(hidden.index_select(0, places), of_used, tokens.at(places), settings)
    wanted = (torch.is_grad_enabled() and hidden.requires_grad, torch.is_grad_enabled() and weight.requires_grad)
    found = _in_tiles(used, weight.detach(), scaled, wanted)
    total = found.total
    if any(wanted):
        total = Attached.apply(used.hidden, weight, total, [found.hidden, found.weight])  # type: ignore[no-untyped-call]
    return ScoreCentering(total, found.distance)


def linear_score_centering_reference(
    hidden: Tensor,
    weight: Tensor,
    rows: TeacherRows,
    tokens: PolicyTokens,
    settings: PolicySettings,
    *,
    temperature: float | Softcapped = 1.0,
) -> ScoreCentering:
    """The same in plain torch, differentiated by autograd; holds several `[N, V]` tensors."""
    scaled, used = Softcapped.of(temperature), tokens.used
    logits = softcapped(hidden @ weight.T, scaled.softcap).to(torch.promote_types(hidden.dtype, torch.float32)) / scaled.value
    every, ids = logits.log_softmax(-1)[used], rows.ids[used]
    factors, distances = _factors(every.detach(), every.detach().exp(), TeacherRows(ids, rows.logprobs[used]), settings)
    means = (factors * every.gather(1, ids)).sum(1)
    return ScoreCentering((means * (tokens.weights * tokens.advantages)[used]).sum(), (distances * tokens.entropy_weights[used]).sum())


class _Used(NamedTuple):
    """The tokens that are used."""

    hidden: Tensor
    rows: TeacherRows
    tokens: PolicyTokens
    settings: PolicySettings


class _Found(NamedTuple):
    total: Tensor
    distance: Tensor
    hidden: Tensor | None
    weight: Tensor | None


def _check(
    hidden: Tensor, weight: Tensor, rows: TeacherRows, tokens: PolicyTokens, settings: PolicySettings, temperature: Softcapped
) -> None:
    check_head(hidden, weight, temperature.value)
    temperature.check("temperature")
    tokens.check(len(hidden), settings, hidden)
    rows.check(tokens.used, hidden, weight)
    region = settings.trust_region
    require(region in CENTRED_REGIONS, "settings", f'have the trust region "{region}"; pass one of {", ".join(CENTRED_REGIONS)}')
    by_token = settings.ratio == "token" and settings.importance != "decoupled" and not settings.needs_sequences
    require(by_token, "settings", "weigh whole sequences, or by the policy before the step; pass those of single tokens and of mu")


def _weight(ratio: Tensor, settings: PolicySettings) -> Tensor:
    """w of a ratio: what the gradient of the trust region's gain is multiplied by, see the table of `trust_region`."""
    if settings.importance == "none":
        return torch.ones_like(ratio)
    low, high = 1.0 - settings.low, 1.0 + settings.high
    if settings.trust_region == "cap":
        return ratio.clamp(low, high)
    return ratio * ((ratio >= low) & (ratio <= high)) if settings.trust_region == "band" else ratio


def _factors(every: Tensor, shares: Tensor, rows: TeacherRows, settings: PolicySettings) -> tuple[Tensor, Tensor]:
    """q · w - alpha · p of the tokens of each row, `[n, k]`, and the total variation of each row, `[n]`.

    `every` and `shares` are the policy's log-probabilities and probabilities, `[n, V]`.
    """
    of_sampler = rows.logprobs.to(every.dtype)
    q, q_rest = of_sampler[:, :-1].exp(), of_sampler[:, -1:].exp().clamp(min=_LEAST_MASS)
    p, p_rest = shares.gather(1, rows.ids), shares.scatter(1, rows.ids, 0.0).sum(1, keepdim=True).clamp(min=_LEAST_MASS)
    kappa = q_rest / p_rest
    ratio = (every.gather(1, rows.ids) - of_sampler[:, :-1]).exp()
    factors = q * _weight(ratio, settings) - kappa * _weight(1.0 / kappa, settings) * p
    return factors, 0.5 * ((q - p).abs().sum(1) + (q_rest - p_rest).abs().squeeze(1))


@torch.no_grad()
def _in_tiles(used: _Used, weight: Tensor, temperature: Softcapped, wanted: tuple[bool, bool]) -> _Found:
    hidden, dtype, tokens = used.hidden.detach(), torch.promote_types(used.hidden.dtype, torch.float32), used.tokens
    gradients = HeadGradients.zeros(hidden, weight, temperature, wanted)
    total, distance = hidden.new_zeros(2, dtype=dtype).unbind()
    for tile in logprob_tiles(hidden, weight, temperature):
        part, every = tile.rows, tile.logprobs
        shares, rows = every.exp(), TeacherRows(used.rows.ids[part], used.rows.logprobs[part])
        factors, distances = _factors(every, shares, rows, used.settings)
        scale = (tokens.weights[part] * tokens.advantages[part]).to(dtype)
        total += ((factors * every.gather(1, rows.ids)).sum(1) * scale).sum()
        distance += (distances * tokens.entropy_weights[part]).sum()
        if not gradients.are_wanted:
            continue
        # d/dz_u of the sum over v of c_v log p_v is c_u - p_u · sum of c.
        slopes = shares.mul_(-factors.sum(1, keepdim=True)).scatter_add_(1, rows.ids, factors)
        gradients.add(tile, slopes.mul_((scale / temperature.value)[:, None]))
    return _Found(total, distance, gradients.hidden, gradients.weight)
