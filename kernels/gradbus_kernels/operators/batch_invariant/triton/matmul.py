"""Triton kernel of `invariant_matmul`: every element sums over K in blocks of one size, in order, in one program.

Block sizes are the same for every N, and K is never split among programs. The cost: a product with a small N leaves most of
the GPU idle.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import INTERPRETED
from gradbus_kernels.operators.base.block_sizes import INVARIANT_MATMUL as LAUNCH


def matmul(x: Tensor, weight: Tensor, addend: Tensor | None) -> Tensor:
    """See `invariant_matmul`."""
    (rows, inner), columns = x.shape, weight.shape[1]
    out = x.new_empty(rows, columns)
    if rows:
        grid = triton.cdiv(rows, LAUNCH.rows), triton.cdiv(columns, LAUNCH.columns)
        given = out if addend is None else addend.expand(rows, columns)
        _matmul[grid](
            x,
            weight,
            given,
            out,
            rows,
            columns,
            inner,
            *x.stride(),
            *weight.stride(),
            *given.stride(),
            ADDED=addend is not None,
            ROWS=LAUNCH.rows,
            COLUMNS=LAUNCH.columns,
            INNER=LAUNCH.inner,
            WIDEN=INTERPRETED,
            num_warps=LAUNCH.warps,
        )
    return out


@triton.jit
def _matmul(
    x, weight, addend, out, rows, columns, inner, x_row, x_inner, weight_inner, weight_column, addend_row, addend_column,
    ADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, inner, INNER):
        index = (start + tl.arange(0, INNER)).to(tl.int64)
        left = tl.load(x + row * x_row + index[None, :] * x_inner, (row < rows) & (index[None, :] < inner), 0.0)
        right = tl.load(weight + index[:, None] * weight_inner + column * weight_column, (index[:, None] < inner) & (column < columns), 0.0)
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="ieee")
    inside = (row < rows) & (column < columns)
    if ADDED:
        total += tl.load(addend + row * addend_row + column * addend_column, inside, 0.0).to(tl.float32)
    tl.store(out + row * columns + column, total.to(out.dtype.element_ty), inside)
