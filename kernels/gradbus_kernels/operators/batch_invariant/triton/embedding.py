"""Triton kernel of `invariant_embedding`'s gradient: one program sums a block of columns of one row of the weight.

Positions are sorted by id, stably, and those of one id are summed in blocks, from the first on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import INVARIANT_EMBEDDING as LAUNCH


def row_sums_triton(ids: Tensor, grad: Tensor, rows: int) -> Tensor:
    """See `row_sums`."""
    grad, sums = grad.contiguous(), grad.new_zeros(rows, grad.shape[1])
    if grad.numel():
        ordered, positions = torch.sort(ids, stable=True)
        ends = torch.searchsorted(ordered, ordered, right=True)
        grid = len(ids), triton.cdiv(grad.shape[1], LAUNCH.columns)
        _row_sums[grid](ordered, positions, ends, grad, sums, grad.shape[1], POSITIONS=LAUNCH.positions, COLUMNS=LAUNCH.columns)
    return sums


@triton.jit
def _row_sums(ordered, positions, ends, grad, sums, width, POSITIONS: tl.constexpr, COLUMNS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64)
    row = tl.load(ordered + first)
    before = tl.load(ordered + first - 1, mask=first > 0, other=-1)
    if before != row:  # the first position of its id
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        end = tl.load(ends + first)
        total = tl.zeros((COLUMNS,), tl.float32)
        for start in range(first, end, POSITIONS):
            number = start + tl.arange(0, POSITIONS)
            position = tl.load(positions + number, mask=number < end, other=0)
            inside = (number < end)[:, None] & (column < width)[None, :]
            total += tl.sum(tl.load(grad + position[:, None] * width + column[None, :], mask=inside, other=0.0).to(tl.float32), 0)
        tl.store(sums + row * width + column, total.to(sums.dtype.element_ty), mask=column < width)
