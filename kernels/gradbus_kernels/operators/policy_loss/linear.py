"""The policy loss fused with the LM head: loss and gradients in one pass over the tokens, without the `[N, V]` matrix of logits.

A token's part in the loss depends on its own log-probability and entropy alone, so the derivative is known as soon as its logits
are: the forward pass makes the gradients too, in 6 N D V operations, where recomputation takes 8. A ratio or a mask of whole
sequences (`PolicySettings.needs_sequences`) needs all log-probabilities first and takes those 8.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import cast

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_finite, check_head, check_ids
from gradbus_kernels.operators.base.attached import Attached
from gradbus_kernels.operators.base.dispatch import Implementation, choose
from gradbus_kernels.operators.base.softcap import Softcapped
from gradbus_kernels.operators.linear_logprob.api import backend, linear_logprob, linear_logprob_reference
from gradbus_kernels.operators.linear_logprob.head import Coefficients, Head, Statistics
from gradbus_kernels.operators.policy_loss.api import PolicyLoss, policy_loss, policy_loss_of_used
from gradbus_kernels.operators.policy_loss.inputs import PolicySettings, PolicyTokens
from gradbus_kernels.operators.policy_loss.terms import policy_terms


def linear_grpo_loss(
    hidden: Tensor, weight: Tensor, ids: Tensor, tokens: PolicyTokens, settings: PolicySettings, *, temperature: float | Softcapped = 1.0
) -> PolicyLoss:
    """`policy_loss` of softmax(hidden · weightᵀ / temperature) at `ids`.

    `hidden` float `[N, H]`, `weight` `[V, H]` of the same dtype, `ids` int64 `[N]`; `tokens` as there, `temperature` as in
    `linear_logprob`. Tokens whose weights are 0 cost nothing, and their ids and hidden states may be anything. `total` is differentiable
    in hidden and weight: backward scales the stored gradients and releases them; it can run once. The loss and its statistics are float32
    (float64 for float64).
    Raises ValueError for arguments that do not fit, and for NaN in what is used of them unless `settings.allow_nan`.
    """
    scaled = Softcapped.of(temperature)
    check_head(hidden, weight, scaled.value)
    scaled.check("temperature")
    tokens.check(len(hidden), settings, hidden)
    used = tokens.used
    check_ids("ids", ids.where(used, 0) if ids.shape == used.shape else ids, (len(hidden),), len(weight), hidden)
    loss = _Loss(tokens, settings, scaled, choose("linear_grpo_loss", hidden, ("reference", "cpu", "triton")))
    outcome = loss.of(hidden, weight, ids) if bool(used.all()) else _of_used(loss, used, hidden, weight, ids)
    if not settings.allow_nan and bool(outcome.total.isnan()):
        _name_nan(outcome, tokens)
    return outcome


def _of_used(loss: _Loss, used: Tensor, hidden: Tensor, weight: Tensor, ids: Tensor) -> PolicyLoss:
    tokens, places = loss.tokens, used.nonzero().squeeze(1)
    dense = replace(loss, tokens=tokens.at(places)).of(hidden.index_select(0, places), weight, ids[places])
    blank = {"logprobs": 0.0, "entropies": 0.0, "ratios": 1.0}
    rows = {name: getattr(dense, name) for name in blank}
    full = {name: part.new_full((len(hidden),), blank[name]).index_copy(0, places, part) for name, part in rows.items()}
    return replace(dense, **full)


def linear_grpo_loss_reference(
    hidden: Tensor, weight: Tensor, ids: Tensor, tokens: PolicyTokens, settings: PolicySettings, *, temperature: float | Softcapped = 1.0
) -> PolicyLoss:
    """`linear_grpo_loss` in plain torch, differentiated by autograd; holds several `[N, V]` tensors."""
    found = linear_logprob_reference(hidden, weight, ids.where(tokens.used, 0), temperature=temperature)
    return policy_loss(found.logprobs, cast("Tensor", found.entropies), tokens, settings)


@dataclass(frozen=True, slots=True)
class _Loss:
    """The loss of tokens that are all used."""

    tokens: PolicyTokens
    settings: PolicySettings
    temperature: Softcapped
    implementation: Implementation

    def of(self, hidden: Tensor, weight: Tensor, ids: Tensor) -> PolicyLoss:
        """See `linear_grpo_loss`."""
        if self.implementation == "reference":
            return linear_grpo_loss_reference(hidden, weight, ids, self.tokens, self.settings, temperature=self.temperature)
        if self.settings.needs_sequences:
            return self._given(linear_logprob(hidden, weight, ids, temperature=self.temperature, allow_nan=True))
        return self._in_one_pass(hidden, weight, ids)

    def _in_one_pass(self, hidden: Tensor, weight: Tensor, ids: Tensor) -> PolicyLoss:
        head, chosen = Head(hidden.detach(), weight.detach(), ids, *self.temperature), backend(self.implementation)
        wanted = (torch.is_grad_enabled() and hidden.requires_grad, torch.is_grad_enabled() and weight.requires_grad)
        if not any(wanted):
            return self._given(chosen.statistics(head, entropy=True))
        found = chosen.gradients(head, self._differentiate, wanted)
        outcome = self._given(found.statistics)
        total = Attached.apply(hidden, weight, outcome.total, [found.hidden, found.weight])  # type: ignore[no-untyped-call]
        return replace(outcome, total=total)

    def _given(self, statistics: tuple[Tensor, Tensor | None]) -> PolicyLoss:
        logprobs, entropies = statistics
        return policy_loss_of_used(logprobs, cast("Tensor", entropies), self.tokens, self.settings)

    def _differentiate(self, rows: slice, statistics: Statistics) -> Coefficients:
        """By tile of rows, so only of settings by which no token's part depends on another's."""
        logprobs, entropies = (part.detach().requires_grad_() for part in statistics)
        wanted = (logprobs, entropies) if self.settings.entropy else (logprobs,)
        with torch.enable_grad():
            slopes = torch.autograd.grad(policy_terms(logprobs, entropies, self.tokens.at(rows), self.settings).total, wanted)
        return Coefficients(slopes[0], slopes[1] if self.settings.entropy else None)


def _name_nan(outcome: PolicyLoss, tokens: PolicyTokens) -> None:
    """Raises ValueError about the argument that made the loss NaN."""
    check_finite("hidden · weightᵀ", outcome.logprobs)
    for field in fields(tokens):
        part = getattr(tokens, field.name)
        if part is not None:
            check_finite(f"tokens.{field.name}", part.where(tokens.used, 0))
    raise ValueError("tokens: hold infinities that add up to NaN; look for what made them before this call")
