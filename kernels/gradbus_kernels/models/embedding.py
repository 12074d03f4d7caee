"""A table of embeddings whose gradient is added up in float32, in any dtype of the table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Embedding(nn.Embedding):
    """As torch's in float32, and without an initialisation."""

    def forward(self, ids: Tensor) -> Tensor:
        """`[...]` to `[..., H]`."""
        # A token may occur thousands of times in a batch; bfloat16 cannot add up so many gradients.
        if self.weight.dtype == torch.float32:
            return super().forward(ids)
        gathered: Tensor = _Gathered.apply(ids, self.weight)  # type: ignore[no-untyped-call]
        return gathered

    def reset_parameters(self) -> None:
        """Nothing: what is loaded overwrites it."""


class _Gathered(torch.autograd.Function):
    """Rows of a table, whose gradient is added up in float32 at least."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = len(table)
        return table[ids]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor]:
        (ids,) = ctx.saved_tensors
        total = upstream.new_zeros(ctx.rows, upstream.shape[-1], dtype=torch.promote_types(upstream.dtype, torch.float32))
        total.index_add_(0, ids.reshape(-1), upstream.reshape(-1, upstream.shape[-1]).to(total.dtype))
        return None, total.to(upstream.dtype)
