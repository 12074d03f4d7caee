"""Log-probabilities of given tokens from hidden states, computed by the same product and softmax that a sampler uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.arguments import check_finite, check_head, check_ids
from gradbus_kernels.operators.base.block_sizes import slices
from gradbus_kernels.operators.base.dispatch import choose
from gradbus_kernels.operators.batch_invariant.matmul import BLOCK, multiply

_LOGITS: Final = 1 << 24  # 64 MiB of float32: enough for a product at full speed


def invariant_logprob(
    hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float = 1.0, *, allow_nan: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of `ids` `[N]` under softmax(`hidden` `[N, H]` · `weight` `[V, H]`ᵀ / temperature), and the entropies.

    Float32 `[N]` each, differentiable. A row's bits do not depend on the other rows, nor on N. At most 16 M logits exist at a time, and
    the backward pass computes them again, so the extra memory is a few tensors of 64 MiB. Raises ValueError that names the argument;
    also for NaN or +inf among the logits, unless `allow_nan`.
    """
    check_head(hidden, weight, temperature)
    check_ids("ids", ids, (hidden.shape[0],), weight.shape[0], hidden)
    logprobs, entropy = _Logprob.apply(hidden, weight, ids, temperature)  # type: ignore[no-untyped-call]
    if not allow_nan:
        check_finite("hidden · weightᵀ", logprobs)
    return logprobs, entropy


def invariant_logprob_reference(hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The same in plain torch, differentiated by autograd; holds several `[N, V]` tensors."""
    logprobs = (hidden @ weight.t() / temperature).log_softmax(dim=-1)
    return logprobs.gather(1, ids[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(dim=-1)


def row_logprobs(logits: Tensor, temperature: float) -> Tensor:
    """`log_softmax(logits / temperature)` of each row, float32 `[N, V]`, as a sampler computes it."""
    if choose("invariant_logprob", logits, ("reference", "cpu", "triton")) == "triton":
        from gradbus_kernels.operators.batch_invariant.triton.rows import log_softmax  # noqa: PLC0415 - only where Triton runs

        return log_softmax(logits, temperature)
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    return torch.log_softmax(scaled, dim=-1)


class _Logprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(ids), device=hidden.device)
        entropy = torch.empty_like(logprobs)
        for rows in _chunks(len(ids), len(weight)):
            table = row_logprobs(multiply(hidden[rows], weight.t()), temperature)
            logprobs[rows] = table.gather(1, ids[rows, None]).squeeze(1)
            entropy[rows] = -torch.linalg.vecdot(table.exp(), table)
        ctx.save_for_backward(hidden, weight, ids, entropy)
        ctx.temperature = temperature
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """With p = softmax(z): d logp_t / dz = onehot_t - p and dH / dz = -p (log p + H)."""
        hidden, weight, ids, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # a frozen head needs none
        for rows in _chunks(len(ids), len(weight)):
            table = torch.log_softmax((hidden[rows] @ weight.t()).float().div_(ctx.temperature), dim=-1)
            probabilities = table.exp()
            table.add_(entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(grad_logprobs[rows, None])
            grad_logits = table.mul_(probabilities).neg_()
            grad_logits.scatter_add_(1, ids[rows, None], grad_logprobs[rows, None])
            grad_logits = grad_logits.div_(ctx.temperature).to(hidden.dtype)
            torch.mm(grad_logits, weight, out=grad_hidden[rows])
            if grad_weight is not None:
                grad_weight.addmm_(grad_logits.t(), hidden[rows])
        return grad_hidden, grad_weight, None, None


def _chunks(total: int, vocabulary: int) -> Iterator[slice]:
    return slices(total, max(BLOCK, _LOGITS // vocabulary // BLOCK * BLOCK))
