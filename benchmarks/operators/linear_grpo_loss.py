"""`linear_grpo_loss` beside the same loss in plain torch, forward and backward; and its memory as groups grow.

"products" is no loss: the three matrix products that none gets around, by the vendor's library. Liger's loss is measured where
`liger-kernel` is installed.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import torch
from operators.linear_logprob import SIZES, SMALL, head, rounds, shape_of, without_entropy
from operators.rows import Comparison, Row, Work, compare
from torch import Tensor

from gradbus_kernels.operators import (
    PolicyLoss,
    PolicySettings,
    PolicyTokens,
    linear_grpo_loss,
    linear_grpo_loss_reference,
    linear_logprob,
    policy_loss,
)

GROUPS = (16, 64, 128, 256, 1024, 4096)
RESPONSE = 16
"""Tokens of a response in the table of groups: RL-Kernel's 512, scaled down with V and H to what a small machine holds."""
NAIVE_GROUPS = 1024
"""The largest group for which naive computes logits."""
OTHERS = ("Liger",) if find_spec("liger_kernel") else ()
LIGER_SEQUENCE = 512
"""Tokens of a sequence: Liger takes one advantage for each sequence, and computes the logits of one at a time."""


def measure(device: str, quick: bool) -> list[Row]:
    """Both dtypes, bfloat16 with an entropy bonus too, then groups."""
    rows = []
    for dtype in ("float32", "bfloat16") if device == "cpu" else ("bfloat16",):
        for entropy in (0.0,) if dtype == "float32" and not quick else (0.0, 0.001):
            sizes = SMALL if quick else SIZES[device]
            operator = "linear_grpo_loss" + (", entropy bonus" if entropy else "")
            implementations = ("naive", "ours") if entropy else ("products", "naive, no entropy", *OTHERS, "naive", "ours")
            rows += compare(
                _comparison(operator, shape_of(sizes), dtype, {**sizes, "entropy": entropy}, implementations, rounds(device, quick)), device
            )
    for group in GROUPS[:2] if quick else GROUPS:
        sizes = {"tokens": group * RESPONSE, "vocabulary": 32_064, "width": 128}
        shape = f"G={group:,} {shape_of(sizes)}"
        names = ("naive", "ours") if group <= NAIVE_GROUPS else ("ours",)
        rows += compare(_comparison("linear_grpo_loss, groups", shape, "float32", {**sizes, "entropy": 0.0}, names, 1), device)
    return rows


def _comparison(operator: str, shape: str, dtype: str, case: dict[str, float], implementations: tuple[str, ...], count: int) -> Comparison:
    return Comparison("linear_grpo_loss", operator, shape, dtype, case, implementations, rounds=count)


def prepare(implementation: str, entropy: float, device: str, dtype: str, **sizes: int) -> Work:
    """Forward and backward; ratios are about 1, a tenth of them clipped."""
    hidden, weight, ids = (tensor.requires_grad_(tensor.is_floating_point()) for tensor in head(device, dtype, **sizes))
    if implementation == "products":
        return lambda: _products(hidden, weight)
    count = len(ids)
    with torch.no_grad():
        behaviour = linear_logprob(hidden, weight, ids).logprobs
    share = torch.full((count,), 1.0 / count, device=device)
    noise = torch.randn(2, count, device=device)
    tokens = PolicyTokens(behaviour + 0.15 * noise[0], noise[1], share, share)
    operator = {
        "naive, no entropy": _without_entropy,
        "Liger": _liger,
        "naive": linear_grpo_loss_reference,
        "ours": linear_grpo_loss,
    }[implementation]

    def work() -> list[Tensor | None]:
        hidden.grad = weight.grad = None
        outcome = operator(hidden, weight, ids, tokens, PolicySettings(entropy=entropy))
        outcome.total.backward()
        return [hidden.grad, weight.grad]

    return work


def _without_entropy(hidden: Tensor, weight: Tensor, ids: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> PolicyLoss:
    """The least that plain torch can do: it shows no entropy."""
    logprobs = without_entropy(hidden, weight, ids).logprobs
    return policy_loss(logprobs, torch.zeros_like(logprobs), tokens, settings)


def _products(hidden: Tensor, weight: Tensor) -> list[Tensor | None]:
    """Logits, and gradients as if these were their own: 6 N V H operations."""
    with torch.no_grad():
        logits = hidden @ weight.T
        return [logits @ weight, logits.T @ hidden]


def _liger(hidden: Tensor, weight: Tensor, ids: Tensor, tokens: PolicyTokens, settings: PolicySettings) -> PolicyLoss:
    """Of sequences, in eager mode as on a first call; `bnpo` is the mean over all tokens."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss  # noqa: PLC0415 -- only where it is installed

    rows = max(1, len(ids) // LIGER_SEQUENCE)
    loss = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, loss_type="bnpo", compiled=hidden.is_cuda)
    total, _ = loss(
        hidden.view(rows, -1, hidden.shape[1]),
        weight,
        ids.view(rows, -1),
        torch.ones(rows, len(ids) // rows, device=ids.device),
        tokens.advantages.view(rows, -1)[:, 0],
        old_per_token_logps=tokens.behaviour_logprobs.view(rows, -1),
    )
    nothing = torch.zeros_like(tokens.advantages)
    return replace(policy_loss(nothing, nothing, tokens, settings), total=total)
