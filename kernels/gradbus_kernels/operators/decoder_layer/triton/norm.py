"""Triton kernels of `rms_norm`.

The backward pass makes both gradients in one pass over the rows. Each program adds up the weight's gradient of its own rows, and a second
kernel adds these sums in order: no atomics, and which rows a program takes follows from the shape alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.block_sizes import NORM_SUMS as SUMS
from gradbus_kernels.operators.base.block_sizes import RowTile, norm_rows


class Kind(NamedTuple):
    """What is computed."""

    eps: float
    offset: float = 0.0
    """Added to the weight."""
    rounded: bool = True
    """Whether the row is cast back before the weight."""


def rms_norm(x: Tensor, weight: Tensor, kind: Kind) -> Tensor:
    """See `rms_norm` and `rms_norm_in_float32` above."""
    out: Tensor = _RmsNorm.apply(x, weight, kind)
    return out


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kind: Kind) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        out, width = torch.empty_like(x), x.shape[-1]
        rows, tile = x.numel() // max(1, width), norm_rows(width)
        inverse = x.new_empty(rows, dtype=torch.float32)
        if rows:
            grid = (triton.cdiv(rows, tile.rows),)
            _norm_forward[grid](
                x, weight, out, inverse, rows, width, *kind[:2], ROUNDED=kind.rounded,
                ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
            )  # fmt: skip
        ctx.save_for_backward(x, weight, inverse)
        ctx.offset = kind.offset
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, inverse = ctx.saved_tensors
        of_x, of_weight, _ = ctx.needs_input_grad
        out, sums = torch.empty_like(x), torch.empty_like(weight) if of_weight else None
        if len(inverse):
            _differentiate((x, weight, inverse), upstream.contiguous(), out, sums, ctx.offset)
        elif sums is not None:
            sums.zero_()
        return out if of_x else None, sums, None


def _differentiate(
    saved: tuple[Tensor, Tensor, Tensor], upstream: Tensor, out: Tensor, of_weight: Tensor | None, offset: float = 0.0
) -> None:
    """Writes the gradients of x and, unless it is None, of the weight."""
    x, weight, inverse = saved
    rows, width, tile = len(inverse), len(weight), norm_rows(len(weight))
    steps, programs = shares(rows, tile)
    sums = None if of_weight is None else weight.new_empty(programs, width, dtype=torch.float32)
    _norm_backward[(programs,)](
        x, weight, inverse, upstream, out, sums, rows, width, steps, offset,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip
    if sums is not None and of_weight is not None:
        add_sums(sums, of_weight)


def add_sums(sums: Tensor, out: Tensor) -> None:
    """Adds up the rows of float32 `[programs, H]` in order, into `out`, `[H]`."""
    grid = (triton.cdiv(len(out), SUMS.columns),)
    _add_sums[grid](sums, out, len(sums), len(out), ROWS=SUMS.rows, COLUMNS=SUMS.columns, num_warps=SUMS.warps)


def shares(rows: int, tile: RowTile) -> tuple[int, int]:
    """Tiles of each program, and programs, which are a function of the shape alone."""
    tiles = triton.cdiv(rows, tile.rows)
    steps = triton.cdiv(tiles, tile.programs)
    return steps, triton.cdiv(tiles, steps)


@triton.jit
def _norm_forward(
    x, weight, out, inverses, rows, width, eps, offset, ROUNDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside, at = (row < rows)[:, None] & (column < width)[None], row.to(tl.int64)[:, None] * width + column[None]
    values = tl.load(x + at, inside, 0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values, 1) / width + eps)
    tl.store(inverses + row, inverse, row < rows)
    unit = values * inverse[:, None]
    if ROUNDED:
        unit = unit.to(out.dtype.element_ty).to(tl.float32)
    scaled = unit * (tl.load(weight + column, column < width, 0.0).to(tl.float32) + offset)[None]
    tl.store(out + at, scaled.to(out.dtype.element_ty), inside)


@triton.jit
def _norm_backward(
    x, weight, inverses, upstream, out, sums, rows, width, steps, offset, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """With r the root's inverse: dx = r w g - x r³ mean(w g x), and dw = the sum of r g x over rows."""
    column = tl.arange(0, COLUMNS)
    factors = (tl.load(weight + column, column < width, 0.0).to(tl.float32) + offset)[None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(tl.program_id(0) * steps, tl.program_id(0) * steps + steps):
        row = step * ROWS + tl.arange(0, ROWS)
        inside, at = (row < rows)[:, None] & (column < width)[None], row.to(tl.int64)[:, None] * width + column[None]
        values, above = tl.load(x + at, inside, 0.0).to(tl.float32), tl.load(upstream + at, inside, 0.0).to(tl.float32)
        inverse = tl.load(inverses + row, row < rows, 0.0)[:, None]
        both = values * above
        pull = tl.sum(both * factors, 1)[:, None] * (inverse * inverse * inverse) / width
        tl.store(out + at, (above * factors * inverse - values * pull).to(out.dtype.element_ty), inside)
        total += both * inverse
    if sums is not None:
        tl.store(sums + tl.program_id(0).to(tl.int64) * width + column, tl.sum(total, 0), column < width)


@triton.jit
def _add_sums(sums, out, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Adds up the rows of `sums`."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        total += tl.load(sums + row[:, None] * width + column[None], (row < count)[:, None] & (column < width)[None], 0.0)
    tl.store(out + column, tl.sum(total, 0).to(out.dtype.element_ty), column < width)
