"""The policy loss fused with the LM head: loss and gradients in one pass over the tokens, without the `[N, V]` matrix of logits.

A token's part in the loss depends on its own log-probability and entropy alone, so the derivative is known as soon as its logits
are: the forward pass makes the gradients too, in 6 N D V operations, where recomputation takes 8. A ratio of whole sequences
(GSPO) needs all log-probabilities first and takes those 8.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.arguments import check_finite, check_ids
from gradbus_kernels.operators.dispatch import Implementation
from gradbus_kernels.operators.linear_logprob import check_head, choose_head, linear_logprob, linear_logprob_reference
from gradbus_kernels.operators.linear_logprob_head import Coefficients, Head, Statistics, backend
from gradbus_kernels.operators.policy_loss import PolicyLoss, PolicySettings, PolicyTokens, policy_loss


def linear_grpo_loss(
    hidden: Tensor, weight: Tensor, ids: Tensor, tokens: PolicyTokens, settings: PolicySettings, *, temperature: float = 1.0
) -> PolicyLoss:
    """`policy_loss` of softmax(hidden · weightᵀ / temperature) at `ids`.

    `hidden` float `[N, H]`, `weight` `[V, H]` of the same dtype, `ids` int64 `[N]`; `tokens` as there. Tokens whose weights are 0
    cost nothing, and their ids and hidden states may be anything. `total` is differentiable in hidden and weight, once: the backward
    pass scales what the forward pass made and gives it away. The loss and all that is shown of it is float32 (float64 for float64).
    Raises ValueError for arguments that do not fit, and for NaN in what is used of them unless `settings.allow_nan`.
    """
    check_head(hidden, weight, temperature)
    tokens.check(len(hidden), settings, hidden)
    used = tokens.used
    check_ids("ids", ids.where(used, 0), (len(hidden),), len(weight), hidden)
    implementation = choose_head("linear_grpo_loss", hidden)
    if bool(used.all()):
        return _of_used(hidden, weight, ids, tokens, settings, (temperature, implementation))
    places = used.nonzero().squeeze(1)
    dense = _of_used(hidden.index_select(0, places), weight, ids[places], tokens.at(places), settings, (temperature, implementation))
    spread = {
        name: getattr(dense, name).new_zeros(len(hidden)).index_copy(0, places, getattr(dense, name)) for name in ("logprobs", "entropies")
    }
    return replace(dense, ratios=dense.ratios.new_ones(len(hidden)).index_copy(0, places, dense.ratios), **spread)


def linear_grpo_loss_reference(
    hidden: Tensor, weight: Tensor, ids: Tensor, tokens: PolicyTokens, settings: PolicySettings, *, temperature: float = 1.0
) -> PolicyLoss:
    """The same in plain torch, differentiated by autograd; holds several `[N, V]` tensors."""
    found = linear_logprob_reference(hidden, weight, ids.where(tokens.used, 0), temperature=temperature)
    return policy_loss(found.logprobs, found.entropies, tokens, settings)


_How = tuple[float, Implementation]


def _of_used(hidden: Tensor, weight: Tensor, ids: Tensor, tokens: PolicyTokens, settings: PolicySettings, how: _How) -> PolicyLoss:
    temperature, implementation = how
    if implementation == "reference":
        outcome = linear_grpo_loss_reference(hidden, weight, ids, tokens, settings, temperature=temperature)
    elif settings.level == "sequence":
        found = linear_logprob(hidden, weight, ids, temperature=temperature, allow_nan=True)
        outcome = policy_loss(*found, tokens, settings)
    else:
        total, *statistics = _LinearGrpoLoss.apply(hidden, weight, ids, tokens, settings, how)  # type: ignore[no-untyped-call]
        outcome = replace(policy_loss(*statistics, tokens, settings), total=total)
    if not settings.allow_nan and bool(outcome.total.isnan()):
        _name_nan(outcome, tokens)
    return outcome


def _name_nan(outcome: PolicyLoss, tokens: PolicyTokens) -> None:
    check_finite("hidden · weightᵀ", outcome.logprobs)
    for field in fields(tokens):
        part = getattr(tokens, field.name)
        if part is not None:
            check_finite(f"tokens.{field.name}", part)


class _LinearGrpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, tokens: PolicyTokens, settings: PolicySettings, how: _How
    ) -> tuple[Tensor, Tensor, Tensor]:
        temperature, implementation = how
        head, wanted = Head(hidden.detach(), weight.detach(), ids, temperature), ctx.needs_input_grad[:2]
        if any(wanted):
            found = backend(implementation).gradients(head, partial(_differentiate, tokens, settings), wanted)
            statistics, ctx.gradients = found.statistics, (found.hidden, found.weight)
        else:
            statistics = backend(implementation).statistics(head)
        ctx.mark_non_differentiable(*statistics)
        return policy_loss(*statistics, tokens, settings).total, *statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of linear_grpo_loss were given away by its first backward pass; call it again")
        # Kept nowhere else, so that a parameter can take its gradient without a copy.
        gradients, ctx.gradients = ctx.gradients, None
        if bool(grad_total != 1.0):
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(grad_total)
        return *gradients, None, None, None, None


def _differentiate(tokens: PolicyTokens, settings: PolicySettings, rows: slice, statistics: Statistics) -> Coefficients:
    logprobs, entropies = (part.detach().requires_grad_() for part in statistics)
    with torch.enable_grad():
        total = policy_loss(logprobs, entropies, tokens.at(rows), settings).total
        slopes = torch.autograd.grad(total, (logprobs, entropies))
    return Coefficients(slopes[0], slopes[1] if settings.entropy else None)
