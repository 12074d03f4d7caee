"""The reverse KL to a teacher over its k most likely tokens and the rest, fused with the LM head.

The teacher's row at a position is the k tokens that it finds most likely, with their log-probabilities, and the mass of all others as
one more outcome. Over these k + 1 outcomes the KL is at least 0 and vanishes only where policy and teacher agree on all of them; without
the last one a policy could lower it by moving its mass to other tokens. It is at most the KL over the whole vocabulary.

With q_b and p_b the probabilities of outcome b under policy and teacher, and b(v) the outcome that token v belongs to,

    KL = sum_b q_b (log q_b - log p_b),    dKL / dz_v = pi_v (log q_b(v) - log p_b(v) - KL)

for the logit z_v: the derivative is known with the logits, so the forward pass makes the gradients too. The logits of one tile's tokens
exist at a time, with as many probabilities.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_finite, check_floats, check_head, check_ids, require
from gradbus_kernels.operators.base.attached import Attached
from gradbus_kernels.operators.base.softcap import Softcapped, softcapped
from gradbus_kernels.operators.distillation_loss.tiles import HeadGradients, logprob_tiles

LEAST_LOGPROB: Final = -100.0
"""A smaller mass of an outcome is taken for this one: float32 has no smaller probability."""


class TeacherRows(NamedTuple):
    """What a teacher says of N positions."""

    ids: Tensor
    """int64 `[N, k]`: its most likely tokens, each once in a row."""
    logprobs: Tensor
    """float `[N, k + 1]`: log-probabilities of these, and of any other token."""

    def check(self, used: Tensor, hidden: Tensor, weight: Tensor) -> None:
        """Raises ValueError, which names the argument `rows`. Ids of positions that are not `used`, bool `[N]`, may be anything."""
        fits = self.ids.dim() == 2 and len(self.ids) == len(hidden)
        check_ids("rows.ids", self.ids.where(used[:, None], 0) if fits else self.ids, (len(hidden), None), len(weight), hidden)
        most, few = self.ids.shape[1], f"pass at least one and fewer than the vocabulary's {len(weight)}"
        require(0 < most < len(weight), "rows.ids", f"has {most} tokens a row; {few}")
        check_floats("rows.logprobs", self.logprobs, (len(hidden), most + 1), hidden)


class DistillationLoss(NamedTuple):
    """A micro-batch's share of the step's loss. All but `total` is detached."""

    total: Tensor
    """Sum of weight · KL, to be differentiated."""
    logprobs: Tensor
    """Of the policy at `ids`, `[N]`; 0 for a position without a weight."""
    entropies: Tensor
    """Of the policy, `[N]`; 0 for a position without a weight."""


def linear_distillation_loss(
    hidden: Tensor, weight: Tensor, ids: Tensor, rows: TeacherRows, weights: Tensor, *, temperature: float | Softcapped = 1.0
) -> DistillationLoss:
    """The weighted sum over positions of the reverse KL of softmax(hidden · weightᵀ / temperature) to the teacher's rows.

    `hidden` float `[N, H]`, `weight` `[V, H]` of the same dtype, `ids` int64 `[N]`, `weights` float `[N]`. Positions of weight 0 cost
    nothing and may hold anything. `total` is differentiable in hidden and weight; its backward pass gives its gradients away and can run
    once. Loss and statistics are float32 (float64 for float64).
    Raises ValueError for arguments that do not fit. NaN in what is used comes out as NaN.
    """
    scaled = Softcapped.of(temperature)
    _check(hidden, weight, ids, rows, weights, scaled)
    places = (weights != 0.0).nonzero().squeeze(1)
    used = _Used(hidden.index_select(0, places), ids[places], TeacherRows(rows.ids[places], rows.logprobs[places]), weights[places])
    wanted = (torch.is_grad_enabled() and hidden.requires_grad, torch.is_grad_enabled() and weight.requires_grad)
    found = _in_tiles(used, weight.detach(), scaled, wanted)
    statistics = [part.new_zeros(len(hidden)).index_copy(0, places, part) for part in (found.logprobs, found.entropies)]
    total = found.total
    if any(wanted):
        total = Attached.apply(used.hidden, weight, total, [found.hidden, found.weight])  # type: ignore[no-untyped-call]
    return DistillationLoss(total, *statistics)


def linear_distillation_loss_reference(
    hidden: Tensor, weight: Tensor, ids: Tensor, rows: TeacherRows, weights: Tensor, *, temperature: float | Softcapped = 1.0
) -> DistillationLoss:
    """The same in plain torch, differentiated by autograd; holds several `[N, V]` tensors."""
    scaled = Softcapped.of(temperature)
    logits = softcapped(hidden @ weight.T, scaled.softcap).to(torch.promote_types(hidden.dtype, torch.float32)) / scaled.value
    every = logits.log_softmax(-1)
    inside = torch.zeros_like(every, dtype=torch.bool).scatter(1, rows.ids, True)
    rest = every.masked_fill(inside, -torch.inf).logsumexp(-1, keepdim=True)
    policy = torch.cat((every.gather(1, rows.ids), rest), 1).clamp(min=LEAST_LOGPROB)
    kls = (policy.exp() * (policy - rows.logprobs.clamp(min=LEAST_LOGPROB))).sum(1)
    own = every.gather(1, ids[:, None]).squeeze(1)
    return DistillationLoss((kls * weights).sum(), own.detach(), -(every.exp() * every).sum(1).detach())


class _Used(NamedTuple):
    """The positions with a weight."""

    hidden: Tensor
    ids: Tensor
    rows: TeacherRows
    weights: Tensor


class _Found(NamedTuple):
    total: Tensor
    logprobs: Tensor
    entropies: Tensor
    hidden: Tensor | None
    weight: Tensor | None


def _check(hidden: Tensor, weight: Tensor, ids: Tensor, rows: TeacherRows, weights: Tensor, temperature: Softcapped) -> None:
    check_head(hidden, weight, temperature.value)
    temperature.check("temperature")
    check_floats("weights", weights, (len(hidden),), hidden)
    used = weights != 0.0
    check_ids("ids", ids.where(used, 0) if ids.shape == used.shape else ids, (len(hidden),), len(weight), hidden)
    rows.check(used, hidden, weight)
    check_finite("weights", weights)


@torch.no_grad()
def _in_tiles(used: _Used, weight: Tensor, temperature: Softcapped, wanted: tuple[bool, bool]) -> _Found:
    hidden, dtype = used.hidden.detach(), torch.promote_types(used.hidden.dtype, torch.float32)
    gradients = HeadGradients.zeros(hidden, weight, temperature, wanted)
    total = hidden.new_zeros((), dtype=dtype)
    logprobs, entropies = hidden.new_empty(2, len(hidden), dtype=dtype).unbind()
    for tile in logprob_tiles(hidden, weight, temperature):
        part, every = tile.rows, tile.logprobs
        shares = every.exp()
        logprobs[part] = every.gather(1, used.ids[part, None]).squeeze(1)
        # A token of probability 0 adds nothing, and its log-probability may be -inf.
        entropies[part] = -(shares * every.clamp(min=torch.finfo(dtype).min)).sum(1)
        kls = _to_slopes(every, shares, TeacherRows(used.rows.ids[part], used.rows.logprobs[part].to(dtype)))
        total += (kls * used.weights[part]).sum()
        if gradients.are_wanted:
            gradients.add(tile, shares.mul_((used.weights[part] / temperature.value)[:, None]))
    return _Found(total, logprobs, entropies, gradients.hidden, gradients.weight)


def _to_slopes(every: Tensor, shares: Tensor, rows: TeacherRows) -> Tensor:
    """The KL of each row, `[n]`. `shares`, the policy's probabilities `[n, V]`, become the KL's derivatives by the logits."""
    chosen = every.gather(1, rows.ids)
    rest = shares.scatter(1, rows.ids, 0.0).sum(1, keepdim=True).log()
    policy = torch.cat((chosen, rest), 1).clamp_(min=LEAST_LOGPROB)
    apart = policy - rows.logprobs.clamp(min=LEAST_LOGPROB)
    kls = (policy.exp() * apart).sum(1)
    bends = apart - kls[:, None]
    own = shares.gather(1, rows.ids) * bends[:, :-1]
    shares.mul_(bends[:, -1:]).scatter_(1, rows.ids, own)
    return kls
