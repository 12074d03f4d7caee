"""Products of neighbouring rows with the weights of their groups: the tokens of each expert with that expert's matrix.

On a GPU in bfloat16 all groups of a matrix are one launch (`torch.nn.functional.grouped_mm`), elsewhere one product each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gradbus_kernels.operators.linear.product_dtype import product

_ALIGNED: Final = 8
"""Elements of bfloat16 in the 16 bytes that rows of grouped products must be multiples of."""


class GroupSizes:
    """How many rows each group has."""

    def __init__(self, sizes: Tensor) -> None:
        """`sizes` int64 `[E]`."""
        self._sizes = sizes

    @cached_property
    def counts(self) -> list[int]:
        """The sizes on the host, which waits for a GPU."""
        counted: list[int] = self._sizes.tolist()
        return counted

    @cached_property
    def ends(self) -> Tensor:
        """int32 `[E]`: the row after each group's last."""
        return self._sizes.cumsum(0).to(torch.int32)


def grouped(rows: Tensor, sizes: GroupSizes, weights: Sequence[Tensor]) -> Tensor:
    """Neighbouring rows `[N, in]`, as many as each size says, times the transpose of the weight `[out, in]` in its place; `[N, out]`.

    Differentiable once. A weight without rows has a gradient too: zeros, as every optimiser and ZeRO expect.
    """
    how = _AtOnce if fits_one_launch(rows, weights[0]) else _OneByOne
    products: Tensor = how.apply(rows, sizes, *weights)  # type: ignore[no-untyped-call]
    return products


def grouped_fused(rows: Tensor, sizes: GroupSizes, weights: Tensor, biases: Tensor) -> Tensor:
    """The same with the weights `[E, in, out]` of all groups, and biases `[E, out]`."""
    products: Tensor = _Fused.apply(rows, sizes, weights, biases)  # type: ignore[no-untyped-call]
    return products


def fits_one_launch(rows: Tensor, weight: Tensor) -> bool:
    """Whether one launch computes all groups."""
    return rows.is_cuda and rows.dtype == torch.bfloat16 and not any(size % _ALIGNED for size in weight.shape)


class _AtOnce(torch.autograd.Function):
    """Puts the weights side by side for each pass: a copy of them takes a small part of the time of the products."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: GroupSizes, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(rows, *weights)
        ctx.sizes = sizes
        return functional.grouped_mm(rows, torch.stack(weights).transpose(1, 2), offs=sizes.ends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, *weights = ctx.saved_tensors
        of_rows, _, *of_weights = ctx.needs_input_grad
        upstream, ends = upstream.contiguous(), ctx.sizes.ends
        inputs = functional.grouped_mm(upstream, torch.stack(weights), offs=ends) if of_rows else None
        if not any(of_weights):
            return inputs, None, *(None for _ in weights)
        # A group without rows is written by no kernel.
        products = functional.grouped_mm(upstream.t(), rows, offs=ends).masked_fill_(
            (ends.diff(prepend=ends.new_zeros(1)) == 0)[:, None, None], 0.0
        )
        return inputs, None, *products.unbind()


class _OneByOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: GroupSizes, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(rows, *weights)
        ctx.sizes = sizes
        return torch.cat([product(part, weight.t()) for part, weight in zip(torch.split(rows, sizes.counts), weights, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, *weights = ctx.saved_tensors
        of_rows, _, *of_weights = ctx.needs_input_grad
        parts = torch.split(upstream, ctx.sizes.counts)
        inputs = torch.cat([product(part, weight) for part, weight in zip(parts, weights, strict=True)]) if of_rows else None
        used = zip(parts, torch.split(rows, ctx.sizes.counts), of_weights, strict=True)
        return inputs, None, *(product(part.t(), own) if needed else None for part, own, needed in used)


class _Fused(torch.autograd.Function):
    """The same with the weights `[E, in, out]` and biases `[E, out]` of all experts.

    It saves the weights themselves: views of them would keep what ZeRO-3 gathered until the backward pass, which gathers it again.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: GroupSizes, weights: Tensor, biases: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights)
        ctx.sizes = sizes
        parts = zip(torch.split(rows, sizes.counts), weights, biases, strict=True)
        return torch.cat([torch.addmm(bias, part, weight) for part, weight, bias in parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, weights = ctx.saved_tensors
        of_rows, _, of_weights, of_biases = ctx.needs_input_grad
        parts = torch.split(upstream, ctx.sizes.counts)
        inputs = torch.cat([product(part, weight.t()) for part, weight in zip(parts, weights, strict=True)]) if of_rows else None
        products = _products(torch.split(rows, ctx.sizes.counts), parts, weights) if of_weights else None
        return inputs, None, products, torch.stack([part.sum(0) for part in parts]) if of_biases else None


def _products(inputs: Sequence[Tensor], upstream: Sequence[Tensor], like: Tensor) -> Tensor:
    """The gradients of fused weights."""
    products = torch.empty_like(like)
    for own, part, into in zip(inputs, upstream, products, strict=True):
        torch.mm(own.t(), part, out=into)
    return products
