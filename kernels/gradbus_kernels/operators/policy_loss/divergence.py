"""Estimates of KL(pi || ref) by token, to be differentiated, from samples of mu.

| estimator | by token, with r = ref / pi | the mean of its gradient is that of |
|---|---|---|
| k2 | ½ · (log r)² | KL(pi, ref), where pi is mu (arXiv:2506.09477) |
| k3 | r - 1 - log r | KL(ref, pi), where pi is mu |
| unbiased | pi / mu · k3, the ratio by token and with its gradient (DeepSeek-V3.2, arXiv:2512.02556) | KL(pi, ref) |

k1 = -log r has a gradient of mean 0, so it is none of them. k3 is Schulman's (joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gradbus_kernels.operators.policy_loss.log_ratio import bounded


def divergence(logprobs: Tensor, reference: Tensor, log_ratio: Tensor, estimator: Literal["k2", "k3", "unbiased"]) -> Tensor:
    """The estimate by token, never negative; `log_ratio` is that of pi / mu by token. All `[N]`, in nats."""
    apart = bounded(reference - logprobs)
    if estimator == "k2":
        return 0.5 * apart.square()
    k3 = apart.expm1() - apart
    return log_ratio.exp() * k3 if estimator == "unbiased" else k3
