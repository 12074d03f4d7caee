"""A batch-invariant matrix product: the bits of a row are a function of that row and the weight alone.

A BLAS chooses its kernel, and with it the order of the sums, by the shape of the product. The product of exactly `BLOCK` rows defines
the result here. Other row counts are used where a trial on this machine, once a shape, gives the same bits. With some narrow shapes a
BLAS sums a row in an order that depends on its index in the block; K and M are then padded with zeros to wider sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gradbus_kernels.operators.base.arguments import check_dtype, check_floats, require
from gradbus_kernels.operators.base.dispatch import choose
from gradbus_kernels.operators.linear.product_dtype import product

BLOCK: Final = 32
"""Rows of the product that defines the bits."""
_SIZES: Final = (1024, 512, 256, 128, 64, BLOCK)
_ALIGNMENT: Final = 64  # bytes: torch's own alignment; a BLAS may choose its instructions by the alignment of its inputs
WIDTH: Final = 16
"""K and M are padded to a multiple of this, a vector register of float32, where a row's bits depend on its index."""


class ProductShape(NamedTuple):
    """All properties of a product by which a BLAS may choose a kernel, except the number of rows."""

    inner: int
    columns: int
    contiguous: bool
    """False for the transpose of a contiguous weight."""
    added: bool
    dtype: torch.dtype
    threads: int


def invariant_matmul(x: Tensor, weight: Tensor, addend: Tensor | None = None) -> Tensor:
    """`x weight + addend`: `[N, K]` by `[K, M]`, and `[N, M]` or `[M]`; differentiable.

    A row of the result has the same bits for every N, at every index and beside any other rows. `weight` is contiguous or the
    transpose of a contiguous tensor; the two layouts may differ in the last bit. The gradients are plain products: equal calls give
    equal bits. Raises ValueError that names the argument, and RuntimeError where this machine's BLAS has no invariant product.
    """
    check_floats("x", x, (None, None))
    check_floats("weight", weight, (x.shape[1], None), x)
    check_dtype("weight", weight, "x", x)
    require(weight.is_contiguous() or weight.t().is_contiguous(), "weight", "is neither contiguous nor a transpose; call contiguous()")
    if addend is not None:
        check_floats("addend", addend, (weight.shape[1],) if addend.dim() == 1 else (x.shape[0], weight.shape[1]), x)
        check_dtype("addend", addend, "x", x)
    out: Tensor = _Matmul.apply(x, weight, addend)  # type: ignore[no-untyped-call]
    return out


def invariant_matmul_reference(x: Tensor, weight: Tensor, addend: Tensor | None = None) -> Tensor:
    """The definition: each row in a product of `BLOCK` rows whose other rows are zero; without the padding that some machines need."""
    rows = []
    for at, row in enumerate(x):
        block = row.new_zeros(BLOCK, len(row)).index_copy(0, torch.tensor([at % BLOCK], device=row.device), row[None])
        given = None if addend is None else (addend if addend.dim() == 1 else addend[at]).expand(BLOCK, -1)
        rows.append((block @ weight if given is None else torch.addmm(given, block, weight))[at % BLOCK])
    return torch.stack(rows) if rows else x @ weight


def multiply(x: Tensor, weight: Tensor, addend: Tensor | None = None) -> Tensor:
    """`invariant_matmul` without checks and without a gradient."""
    chosen = choose("invariant_matmul", x, ("reference", "cpu", "triton"))
    if chosen == "triton":
        from gradbus_kernels.operators.batch_invariant.triton.matmul import matmul  # noqa: PLC0415 - only where Triton runs

        return matmul(x, weight, addend)
    return invariant_matmul_reference(x, weight, addend) if chosen == "reference" else multiply_blocks(x, weight, addend)


def multiply_blocks(x: Tensor, weight: Tensor, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """`multiply` on a CPU. The result is written into `out` `[N, M]` if given, which may be `addend`."""
    x = _aligned(x)
    out = x.new_empty(len(x), weight.shape[1]) if out is None else out
    shape = *weight.shape, weight.is_contiguous(), addend is not None, x.dtype, torch.get_num_threads()
    spans = _plan(len(x), shape)
    if spans is None:
        return out.copy_(_multiply_padded(x, weight, addend))
    for start, end in spans:
        if end - start == len(x):
            _product(x, weight, addend, out)
        else:
            _product(x[start:end], weight, addend if addend is None or addend.dim() == 1 else addend[start:end], out[start:end])
    return out


@lru_cache(maxsize=4096)
def _plan(rows: int, shape: tuple[Any, ...]) -> Sequence[tuple[int, int]] | None:
    """(start, end) of the products for `rows` rows: the largest that agree with the definition; None if this shape has no definition."""
    if not agrees(BLOCK, ProductShape(*shape)):
        return None
    spans, start = [], 0
    while start < rows:
        size = next(size for size in _SIZES if size <= max(rows - start, BLOCK) and agrees(size, ProductShape(*shape)))
        spans.append((start, min(rows, start + size)))
        start += size
    return spans


@cache
def agrees(rows: int, shape: ProductShape) -> bool:
    """Whether a product of `rows` rows has the definition's bits on this machine, tried on random numbers at the first use of a shape.

    In float32 another order of sums changes most elements; a narrower dtype hides the change, so it takes the definition alone. False
    if rows of a block depend on their index in it: `agrees(BLOCK, shape)` says whether the shape has a definition on this machine.
    """
    if rows != BLOCK and shape.dtype != torch.float32:
        return False
    draw = torch.Generator().manual_seed(0)
    x, stored = (torch.randn(*sizes, generator=draw).to(shape.dtype) for sizes in ((rows, shape.inner), (shape.inner, shape.columns)))
    weight = stored if shape.contiguous else stored.t().contiguous().t()
    addend = torch.randn(rows, shape.columns, generator=draw).to(shape.dtype) if shape.added else None
    whole, parts, turned = (x.new_empty(rows, shape.columns) for _ in range(3))
    _product(x, weight, addend, whole)
    for start in range(0, rows, BLOCK):
        span = slice(start, start + BLOCK)
        _product(x[span], weight, None if addend is None else addend[span], parts[span])
        _product(x[span].flip(0), weight, None if addend is None else addend[span].flip(0), turned[span])
        if not torch.equal(turned[span].flip(0), parts[span]):
            return False
    return torch.equal(whole, parts)


def _multiply_padded(x: Tensor, weight: Tensor, addend: Tensor | None) -> Tensor:
    """`multiply_blocks` with K and M padded to multiples of `WIDTH`. Raises RuntimeError if they are such multiples already."""
    inner, columns = (-size % WIDTH for size in weight.shape)
    if not inner and not columns:
        raise RuntimeError(
            f"rows of a product by a weight of shape {tuple(weight.shape)} depend on their index in a block; "
            "run with numerics = 'fast' on this machine"
        )
    wide = (
        functional.pad(weight, (0, columns, 0, inner)) if weight.is_contiguous() else functional.pad(weight.t(), (0, inner, 0, columns)).t()
    )
    given = None if addend is None else functional.pad(addend, (0, columns))
    return multiply_blocks(functional.pad(x, (0, inner)), wide, given)[:, : weight.shape[1]]


def _product(x: Tensor, weight: Tensor, addend: Tensor | None, out: Tensor) -> None:
    """One BLAS call, with at least `BLOCK` rows."""
    rows = len(x)
    if rows < BLOCK:
        x, into = _padded(x), out.new_empty(BLOCK, out.shape[1])
        addend = addend if addend is None or addend.dim() == 1 else _padded(addend)
    else:
        into = out
    if addend is None:
        torch.mm(x, weight, out=into)
    else:
        torch.addmm(addend, x, weight, out=into)
    if into is not out:
        out.copy_(into[:rows])


def _padded(rows: Tensor) -> Tensor:
    block = rows.new_zeros(BLOCK, rows.shape[1])
    block[: len(rows)] = rows
    return block


def _aligned(x: Tensor) -> Tensor:
    x = x.contiguous()
    return x if x.data_ptr() % _ALIGNMENT == 0 else x.clone()


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, addend: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.addend_dim = 0 if addend is None else addend.dim()
        return multiply(x, weight, addend)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_addend = ctx.needs_input_grad
        addend = grad.sum(0) if ctx.addend_dim == 1 else grad
        return (
            product(grad, weight.t()) if needs_x else None,
            product(x.t(), grad) if needs_weight else None,
            addend if needs_addend else None,
        )
