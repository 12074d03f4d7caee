"""The loss of KTO on labelled responses, over the response tokens of a whole update, given their log-probabilities."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import require
from gradbus_kernels.operators.preference_loss.inputs import KtoSettings, PairTokens


class KtoLoss(NamedTuple):
    """The loss of an update, with its statistics: float64 scalars. All but `total` is detached."""

    total: Tensor
    """To be differentiated."""
    kl: Tensor
    """The reference point z: how far the policy is from the reference model, in nats a response, at least 0."""
    desirable: Tensor
    """Mean log-ratio of the desirable responses, nats; NaN if there are none."""
    undesirable: Tensor
    """The same of the undesirable ones."""


def kto_loss(logprobs: Tensor, tokens: PairTokens, desirable: Tensor, settings: KtoSettings) -> KtoLoss:
    """The mean over B responses of w · (1 - sigmoid(±beta · (r - z))); logprobs are float `[N]`, in nats. Synchronises with a GPU.

    Ethayarajh et al. 2024, arXiv:2402.01306, equations 6 to 8, as TRL has them. r is a response's sum of log pi / ref; the sign is + for a
    desirable response and - for another, and w its label's weight. z is the mean of the same sum over mismatched responses, which
    belong to other prompts, or 0 if that is less: it depends on the whole update, and has no gradient. Of pair b in `tokens`
    the sequence 2 · b is the response, and 2 · b + 1 a mismatched one to its prompt; `desirable` is bool `[B]`. Sums are float64.
    Raises ValueError as `preference_loss` does, and unless `tokens` and `desirable` are those of the whole update.
    """
    tokens.check(logprobs, settings)
    pairs = len(tokens.counts()) // 2
    require(pairs == tokens.pairs, "tokens.pairs", f"is {tokens.pairs} and there are {pairs} here; pass the whole update")
    given = f"is {desirable.dtype} {tuple(desirable.shape)}; pass torch.bool ({pairs},)"
    require((desirable.dtype, desirable.shape) == (torch.bool, (pairs,)), "desirable", given)
    ratios = logprobs.double() if tokens.reference_logprobs is None else logprobs.double() - tokens.reference_logprobs
    own, mismatched = tokens.sums(ratios, 2 * pairs).view(-1, 2).unbind(1)
    kl = mismatched.detach().mean().clamp(min=0.0)
    # 1 - sigmoid(x) is sigmoid(-x), which is exact where the former rounds to 0.
    losses = torch.sigmoid(settings.beta * torch.where(desirable, kl - own, own - kl))
    weights = torch.where(desirable, own.new_tensor(settings.desirable_weight), own.new_tensor(settings.undesirable_weight))
    apart = own.detach()
    return KtoLoss((weights * losses).mean(), kl, apart[desirable].mean(), apart[~desirable].mean())
