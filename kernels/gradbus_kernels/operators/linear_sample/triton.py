"""Triton kernel of `linear_sample`: the product with the LM head, fused with the first kernel of `sample`.

Logits are written once, and the later kernels read only some of them: B · V numbers are written beside the V · H that are read. Tiles
are the same for every B and no sum over H is split among programs, so a row's bits do not depend on the other rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import INTERPRETED
from gradbus_kernels.operators.base.block_sizes import SAMPLE as GROUPS
from gradbus_kernels.operators.base.block_sizes import SAMPLE_LINEAR as LAUNCH
from gradbus_kernels.operators.base.triton import tanh
from gradbus_kernels.operators.sample.reference import Columns, Sampled
from gradbus_kernels.operators.sample.triton import draw_read, empty_read, temperature_of
from gradbus_kernels.operators.sample.triton_kernels import power


def draw_linear_triton(hidden: Tensor, weight: Tensor, uniforms: Tensor, rows: Columns, softcap: float | None = None) -> Sampled:
    """`draw_rows` from `hidden @ weight.T`, bounded by the softcap."""
    hidden, weight = hidden.contiguous(), weight.contiguous()
    (count, width), vocabulary = hidden.shape, len(weight)
    logits = hidden.new_empty(count, vocabulary)
    read = empty_read(logits, LAUNCH.columns, rows)
    if uniforms.numel():
        tiles = triton.cdiv(count, LAUNCH.rows), triton.cdiv(vocabulary, LAUNCH.columns)
        _head[tiles](
            hidden, weight, logits, *temperature_of(rows, logits), *read.sums, read.highest, read.maxima,
            count, vocabulary, width, read.highest.shape[1], triton.cdiv(vocabulary, GROUPS.group),
            ROWS=LAUNCH.rows, COLUMNS=LAUNCH.columns, INNER=LAUNCH.inner_bytes // hidden.element_size(), GROUP=GROUPS.group,
            SOFTCAP=softcap or 0.0, WIDEN=INTERPRETED, num_warps=LAUNCH.warps, num_stages=LAUNCH.stages,
        )  # fmt: skip
    return draw_read(logits, read, uniforms, rows)


@triton.jit
def _head(
    hidden, weight, logits, temperatures, apart, peaks, totals, highest, maxima, count, vocabulary, width, slices, groups,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
    SOFTCAP: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    number = tl.program_id(1)
    column = number * COLUMNS + tl.arange(0, COLUMNS)
    here, inside = row < count, (column < vocabulary)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, INNER):
        index = start + tl.arange(0, INNER)
        left = tl.load(hidden + row[:, None] * width + index[None, :], here[:, None] & (index[None, :] < width), 0.0)
        right = tl.load(weight + column.to(tl.int64)[None, :] * width + index[:, None], inside & (index[:, None] < width), 0.0)
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="ieee")
    if SOFTCAP > 0:
        total = tanh(total / SOFTCAP) * SOFTCAP
    made = total.to(logits.dtype.element_ty)
    tl.store(logits + row[:, None] * vocabulary + column[None, :], made, here[:, None] & inside)
    value = tl.where(inside, made.to(tl.float32), float("-inf"))
    maximum = tl.max(tl.reshape(value, (ROWS, COLUMNS // GROUP, GROUP)), 2)
    peak = tl.max(maximum, 1)
    group = number * (COLUMNS // GROUP) + tl.arange(0, COLUMNS // GROUP)
    if maxima is not None:
        kept = here[:, None] & (group < groups)[None, :]
        tl.store(maxima + row[:, None] * groups + group[None, :], maximum.to(maxima.dtype.element_ty), kept)
    at = row * slices + number
    temperature = tl.load(temperatures + row * apart, here, 1.0)
    tl.store(peaks + at, peak, here)
    tl.store(totals + at, tl.sum(power(value, peak[:, None], temperature[:, None]), 1), here)
    tl.store(highest + at, tl.min(tl.where(maximum == peak[:, None], group[None, :], groups - 1), 1), here)
