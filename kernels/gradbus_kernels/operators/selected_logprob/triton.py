"""Triton kernels of `selected_logprob`.

Forward: a program takes one slice of one row, for any number of rows, and a second kernel merges a row's slices in order. The
slices depend on V alone, so a row's bits do not depend on the other rows, and a single row still has several programs. The
backward pass is one elementwise kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import SELECTED_LOGPROB as LAUNCH
from gradbus_kernels.operators.selected_logprob.rows import RowGradients, RowInputs, RowStatistics


def forward_triton(inputs: RowInputs, entropy: bool) -> RowStatistics:
    """See `selected_logprob`."""
    logits, other = _dense(inputs.logits), None if inputs.other_logits is None else _dense(inputs.other_logits)
    rows, vocabulary = logits.shape
    slices = triton.cdiv(vocabulary, LAUNCH.slice)
    parts = logits.new_empty(7, slices, rows, dtype=torch.float32)
    found = logits.new_zeros(5, rows, dtype=torch.float32)
    normaliser, other_normaliser = logits.new_zeros(2, rows, 2, dtype=torch.float32).unbind()
    how = {"ENTROPY": entropy, "OTHER": other is not None}
    inverse = 1.0 / inputs.temperature
    if rows:
        block = min(LAUNCH.block, triton.next_power_of_2(vocabulary))
        _take_slices[rows, slices](
            logits, other, parts, inputs.valid, inverse, rows, vocabulary, SLICE=LAUNCH.slice, BLOCK=block, num_warps=LAUNCH.warps, **how
        )
        _put_together[(triton.cdiv(rows, LAUNCH.rows),)](
            logits,
            other,
            inputs.ids.contiguous(),
            parts,
            found,
            normaliser,
            other_normaliser,
            inputs.valid,
            inverse,
            rows,
            vocabulary,
            slices,
            ROWS=LAUNCH.rows,
            **how,
        )
    logprobs, entropies, kl, other_logprobs, apart = found.unbind()
    if other is None:
        return RowStatistics(logprobs, entropies if entropy else None, None, None, normaliser, None)
    return RowStatistics(logprobs, entropies if entropy else None, kl, other_logprobs, normaliser, other_normaliser, apart)


def backward_triton(inputs: RowInputs, found: RowStatistics, wanted: RowGradients, out: Tensor | None = None) -> Tensor:
    """The gradient in `logits`, as `backward_cpu` defines it, rounded to the dtype of `out` if that is given. `out` may be the logits."""
    logits, other = _dense(inputs.logits), None if inputs.other_logits is None else _dense(inputs.other_logits)
    gradient = torch.empty_like(logits) if out is None else out
    rows, vocabulary = logits.shape
    if rows:
        block = min(LAUNCH.block, triton.next_power_of_2(vocabulary))
        _gradient[rows, triton.cdiv(vocabulary, block)](
            logits,
            None if wanted.kl is None else other,
            inputs.ids.contiguous(),
            inputs.valid,
            gradient,
            found.entropy,
            found.apart,
            found.normaliser,
            found.other_normaliser,
            *(None if part is None else part.contiguous() for part in wanted),
            1.0 / inputs.temperature,
            vocabulary,
            BLOCK=block,
            num_warps=LAUNCH.warps,
        )
    return gradient


def _dense(logits: Tensor) -> Tensor:
    return logits if logits.is_contiguous() else logits.contiguous()


@triton.jit
def _finite(peak):
    """The maximum, or 0 if all values are -inf."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def _moved(peak, to):
    """The amount to add to values relative to `peak` to make them relative to `to`; 0 if there are no values."""
    return tl.where(peak == float("-inf"), 0.0, peak - to)


@triton.jit
def _merge(
    peak, total, moment, apart, beside, other_peak, other_total,
    peak_b, total_b, moment_b, apart_b, beside_b, other_peak_b, other_total_b,
):  # fmt: skip
    """Merges the statistics of two parts of a row.

    With peak = max x, and beside = y where x is that: total = sum e^(x-peak), moment = sum e^(x-peak) (x-peak),
    apart = sum e^(x-peak) ((x-peak) - (y-beside)). So the likeliest token adds exactly nothing to it.
    """
    to, other_to = tl.maximum(peak, peak_b), tl.maximum(other_peak, other_peak_b)
    beside_to = tl.where(peak_b > peak, beside_b, beside)
    base, other_base, beside_base = _finite(to), _finite(other_to), _finite(beside_to)
    scale, scale_b = tl.exp(peak - base), tl.exp(peak_b - base)
    move, move_b = _moved(peak, base), _moved(peak_b, base)
    off, off_b = move - _moved(beside, beside_base), move_b - _moved(beside_b, beside_base)
    moment = scale * (moment + total * move) + scale_b * (moment_b + total_b * move_b)
    apart = _weighted(scale, apart + total * off) + _weighted(scale_b, apart_b + total_b * off_b)
    total = scale * total + scale_b * total_b
    other_total = tl.exp(other_peak - other_base) * other_total + tl.exp(other_peak_b - other_base) * other_total_b
    return to, total, moment, apart, beside_to, other_to, other_total


@triton.jit
def _weighted(weight, value):
    """The product; 0 for weight 0, even if the value is infinite."""
    return tl.where(weight == 0, 0.0, weight * value)


@triton.jit
def _take_slices(
    logits, other, parts, valid, inverse, rows, vocabulary,
    ENTROPY: tl.constexpr, OTHER: tl.constexpr, SLICE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if valid is not None:  # noqa: SIM102 -- the outer one is settled when the kernel is compiled
        if tl.load(valid + row) == 0:
            return
    nothing = tl.full((), float("-inf"), tl.float32)
    zero = tl.full((), 0.0, tl.float32)
    peak, total, moment, apart, beside, other_peak, other_total = nothing, zero, zero, zero, nothing, nothing, zero
    for start in range(number * SLICE, min(number * SLICE + SLICE, vocabulary), BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < vocabulary
        value = tl.load(logits + row * vocabulary + columns, mask=inside, other=float("-inf")).to(tl.float32) * inverse
        block_peak = tl.max(value, 0)
        likeliest = value == block_peak  # compared before the subtraction, which a compiler may fuse with the product
        value -= _finite(block_peak)
        weight = tl.exp(value)
        block_moment, block_apart, block_beside, block_other_peak, block_other_total = zero, zero, nothing, nothing, zero
        if ENTROPY:
            block_moment = tl.sum(_weighted(weight, value), 0)
        if OTHER:
            second = tl.load(other + row * vocabulary + columns, mask=inside, other=float("-inf")).to(tl.float32) * inverse
            block_other_peak = tl.max(second, 0)
            block_other_total = tl.sum(tl.exp(second - _finite(block_other_peak)), 0)
            block_beside = tl.max(tl.where(likeliest, second, float("-inf")), 0)
            block_apart = tl.sum(_weighted(weight, value - (second - _finite(block_beside))), 0)
        peak, total, moment, apart, beside, other_peak, other_total = _merge(
            peak, total, moment, apart, beside, other_peak, other_total,
            block_peak, tl.sum(weight, 0), block_moment, block_apart, block_beside, block_other_peak, block_other_total,
        )  # fmt: skip
    slices = tl.num_programs(1)
    at = parts + number * rows + row
    tl.store(at, peak)
    tl.store(at + slices * rows, total)
    if ENTROPY:
        tl.store(at + 2 * slices * rows, moment)
    if OTHER:
        tl.store(at + 3 * slices * rows, apart)
        tl.store(at + 4 * slices * rows, other_peak)
        tl.store(at + 5 * slices * rows, other_total)
        tl.store(at + 6 * slices * rows, beside)


@triton.jit
def _put_together(
    logits, other, ids, parts, found, normaliser, other_normaliser, valid, inverse, rows, vocabulary, slices,
    ENTROPY: tl.constexpr, OTHER: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    if valid is not None:
        inside = inside & (tl.load(valid + row, mask=inside, other=0) != 0)
    nothing = tl.full((ROWS,), float("-inf"), tl.float32)
    zero = tl.full((ROWS,), 0.0, tl.float32)
    peak, total, moment, apart, beside, other_peak, other_total = nothing, zero, zero, zero, nothing, nothing, zero
    step = slices * rows
    for number in range(slices):
        at = parts + number * rows + row
        moment_b, apart_b, beside_b, other_peak_b, other_total_b = zero, zero, nothing, nothing, zero
        if ENTROPY:
            moment_b = tl.load(at + 2 * step, mask=inside, other=0.0)
        if OTHER:
            apart_b = tl.load(at + 3 * step, mask=inside, other=0.0)
            other_peak_b = tl.load(at + 4 * step, mask=inside, other=0.0)
            other_total_b = tl.load(at + 5 * step, mask=inside, other=1.0)
            beside_b = tl.load(at + 6 * step, mask=inside, other=0.0)
        peak, total, moment, apart, beside, other_peak, other_total = _merge(
            peak, total, moment, apart, beside, other_peak, other_total,
            tl.load(at, mask=inside, other=0.0), tl.load(at + step, mask=inside, other=1.0),
            moment_b, apart_b, beside_b, other_peak_b, other_total_b,
        )  # fmt: skip
    index = row.to(tl.int64) * vocabulary + tl.load(ids + row, mask=inside, other=0)
    value = tl.load(logits + index, mask=inside, other=0.0).to(tl.float32) * inverse
    log_total = tl.log(total)
    tl.store(found + row, value - peak - log_total, mask=inside)
    tl.store(normaliser + 2 * row, peak, mask=inside)
    tl.store(normaliser + 2 * row + 1, log_total, mask=inside)
    if ENTROPY:
        tl.store(found + rows + row, log_total - moment / total, mask=inside)
    if OTHER:
        second = tl.load(other + index, mask=inside, other=0.0).to(tl.float32) * inverse
        log_other_total, mean, base = tl.log(other_total), apart / total, _finite(beside)
        other_rest = log_other_total + (other_peak - base)
        tl.store(found + 2 * rows + row, mean - log_total + other_rest, mask=inside)
        tl.store(found + 3 * rows + row, second - other_peak - log_other_total, mask=inside)
        tl.store(found + 4 * rows + row, mean, mask=inside)
        tl.store(other_normaliser + 2 * row, base, mask=inside)
        tl.store(other_normaliser + 2 * row + 1, other_rest, mask=inside)


@triton.jit
def _gradient(
    logits, other, ids, valid, gradient, entropy, apart, normaliser, other_normaliser,
    wanted, wanted_entropy, wanted_kl, inverse, vocabulary, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocabulary
    index = row * vocabulary + columns
    counts = True
    if valid is not None:
        counts = tl.load(valid + row) != 0
    value = tl.load(logits + index, mask=inside, other=0.0).to(tl.float32) * inverse
    value -= tl.load(normaliser + 2 * row)
    log_total = tl.load(normaliser + 2 * row + 1)
    weight = tl.exp(value - log_total)
    pull = tl.zeros((BLOCK,), tl.float32)
    at_token = tl.full((), 0.0, tl.float32)
    if wanted is not None:
        at_token = tl.load(wanted + row)
        pull += at_token
    if wanted_entropy is not None:
        pull += tl.load(wanted_entropy + row) * (value + (tl.load(entropy + row) - log_total))
    if wanted_kl is not None:
        beside = tl.load(other + index, mask=inside, other=0.0).to(tl.float32) * inverse - tl.load(other_normaliser + 2 * row)
        pull -= tl.load(wanted_kl + row) * (value - beside - tl.load(apart + row))
    own = tl.where(columns == tl.load(ids + row), at_token, 0.0)
    result = (own - tl.where(weight == 0, 0.0, weight * pull)) * inverse
    tl.store(gradient + index, tl.where(counts, result, 0.0).to(gradient.dtype.element_ty), mask=inside)
