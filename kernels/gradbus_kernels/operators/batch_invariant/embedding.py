"""Embedding with a gradient whose bits do not depend on the order in which threads run.

The gradient of torch's own embedding adds by atomic operations on a GPU, in any order, and on a CPU in the dtype of the weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gradbus_kernels.operators.base.arguments import check_floats, check_ids
from gradbus_kernels.operators.base.dispatch import choose


def invariant_embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """`weight[ids]`: int64 `[N]` and `[V, H]` give `[N, H]`; differentiable.

    The gradient of a row of `weight` is the sum over the positions of its id, in their order, in float32 at least, and cast back. Other
    positions have no influence on it. Raises ValueError for ids out of range.
    """
    check_floats("weight", weight, (None, None))
    check_ids("ids", ids, (None,), len(weight), weight)
    chosen = choose("invariant_embedding", weight, ("reference", "cpu", "triton"))
    if chosen == "reference":
        return invariant_embedding_reference(ids, weight)
    out: Tensor = _Embedding.apply(ids, weight, chosen)  # type: ignore[no-untyped-call]
    return out


def invariant_embedding_reference(ids: Tensor, weight: Tensor) -> Tensor:
    """The same with autograd's own gradient."""
    return functional.embedding(ids, weight)


def row_sums(ids: Tensor, grad: Tensor, rows: int) -> Tensor:
    """`[rows, H]`: the sum of `grad` `[N, H]` over the positions of each id, in order; only ids that occur take float32 memory."""
    present, position = torch.unique(ids, return_inverse=True)
    sums = grad.new_zeros(len(present), grad.shape[1], dtype=torch.promote_types(grad.dtype, torch.float32))
    sums.index_add_(0, position, grad.to(sums.dtype))
    return grad.new_zeros(rows, grad.shape[1]).index_copy_(0, present, sums.to(grad.dtype))


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, chosen: str) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.chosen = len(weight), chosen
        return weight.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        (ids,) = ctx.saved_tensors
        if ctx.chosen == "triton":
            from gradbus_kernels.operators.batch_invariant.triton.embedding import row_sums_triton  # noqa: PLC0415 -- only where Triton runs

            return None, row_sums_triton(ids, grad, ctx.rows), None
        return None, row_sums(ids, grad, ctx.rows), None
