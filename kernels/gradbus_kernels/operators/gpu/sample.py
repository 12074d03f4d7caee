"""Triton kernels of `sample`: no sort, and the ids of the reference up to rounding.

1. `_statistics`: maximum, sum of exponentials and place of the maximum of one slice of one row.
2. `_support`: a program a row puts its slices together and finds the threshold of the support: bit by bit, the largest number that
   k logits reach, or that logits of enough mass reach. A row's later readings come from the second-level cache.
3. `_masses`: the mass of the support in each slice.
4. `_draw`: a program a draw walks to the slice, the block and the token where the cumulative mass exceeds the uniform number.

How a row is cut in slices depends on V alone, and sums run in one order: its bits do not depend on the rows beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradbus_kernels.operators.gpu.launch import SAMPLE as LAUNCH
from gradbus_kernels.operators.sample_rows import Columns, Sampled


def draw_triton(logits: Tensor, uniforms: Tensor, rows: Columns) -> Sampled:
    """See `draw_rows`."""
    logits = logits.contiguous()
    (count, vocabulary), draws = logits.shape, uniforms.shape[1]
    ids = torch.empty(count, draws, dtype=torch.int64, device=logits.device)
    logprobs, support_logprobs = logits.new_empty(2, count, draws, dtype=torch.float32).unbind()
    if not ids.numel():
        return Sampled(ids, logprobs, support_logprobs)
    slices = triton.cdiv(vocabulary, LAUNCH.slice)
    block = min(LAUNCH.block, triton.next_power_of_2(vocabulary))
    parts = logits.new_empty(2, slices, count, dtype=torch.float32)
    places = ids.new_empty(slices, count)
    normaliser = logits.new_empty(count, 2, dtype=torch.float32)
    best, threshold = ids.new_empty(2, count).unbind()
    masses = logits.new_empty(slices, count, dtype=torch.float64)
    temperature = rows.temperature
    by_row = (
        temperature.flatten().contiguous()
        if isinstance(temperature, Tensor)
        else logits.new_full((count,), temperature, dtype=torch.float32)
    )
    columns = [None if part is None else part.flatten().contiguous() for part in rows[1:]]
    wide = {"BLOCK": block, "num_warps": LAUNCH.warps}
    _statistics[count, slices](logits, by_row, parts, places, count, vocabulary, SLICE=LAUNCH.slice, **wide)
    _support[(count,)](
        logits, by_row, parts, places, normaliser, best, threshold, *columns[:3], count, vocabulary, slices, **wide,
        UNUSED=_UNUSED_BITS.get(logits.dtype, 0),
    )  # fmt: skip
    _masses[count, slices](logits, by_row, normaliser, threshold, masses, count, vocabulary, SLICE=LAUNCH.slice, **wide)
    _draw[count, draws](
        logits, by_row, normaliser, threshold, masses, best, uniforms.contiguous(), columns[3], ids, logprobs, support_logprobs,
        count, vocabulary, slices, SLICE=LAUNCH.slice, **wide,
    )  # fmt: skip
    return Sampled(ids, logprobs, logprobs if rows.cut is None else torch.where(rows.cut, support_logprobs, logprobs))


_UNUSED_BITS = {torch.bfloat16: 16, torch.float16: 13}
"""Low bits of a float32 that are 0 for every number of this dtype."""


@triton.jit
def _key(value):
    """Integers in [0, 2^32) in the order of float32 numbers; 0 stands for what is outside the row."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 0x80000000


@triton.jit
def _load(logits, row, columns, end, vocabulary):
    return tl.load(logits + row * vocabulary + columns, mask=columns < end, other=float("-inf")).to(tl.float32)


@triton.jit
def _weight(value, temperature, peak, log_total, threshold):
    """Probability within the support, 0 outside."""
    return tl.where(_key(value) >= threshold, tl.exp(value / temperature - peak - log_total), 0.0)


@triton.jit
def _statistics(logits, temperatures, parts, places, count, vocabulary, SLICE: tl.constexpr, BLOCK: tl.constexpr):
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    end = min(number * SLICE + SLICE, vocabulary)
    peak = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    highest, place = peak, tl.full((), 0, tl.int64)
    for start in range(number * SLICE, end, BLOCK):
        raw = _load(logits, row, start + tl.arange(0, BLOCK), end, vocabulary)
        block_highest, block_place = tl.max(raw, 0, return_indices=True)
        place = tl.where(block_highest > highest, start + block_place, place)
        highest = tl.maximum(highest, block_highest)
        value = raw / temperature
        to = tl.maximum(peak, tl.max(value, 0))
        base = tl.where(to == float("-inf"), 0.0, to)
        total = total * tl.exp(peak - base) + tl.sum(tl.exp(value - base), 0)
        peak = to
    at = number * count + row
    tl.store(parts + at, peak)
    tl.store(parts + tl.num_programs(1) * count + at, total)
    tl.store(places + at, place)


@triton.jit
def _reached(logits, row, temperature, peak, log_total, key, above, vocabulary, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """How many logits, or what mass, lie at `key` or above, of those at `above` or above."""
    found = tl.full((), 0.0, tl.float64)
    for start in range(0, vocabulary, BLOCK):
        value = _load(logits, row, start + tl.arange(0, BLOCK), vocabulary, vocabulary)
        if MASS:
            found += tl.sum(_weight(value, temperature, peak, log_total, tl.maximum(key, above)), 0).to(tl.float64)
        else:
            found += tl.sum((_key(value) >= key).to(tl.int32), 0).to(tl.float64)
    return found


@triton.jit
def _search(
    logits, row, temperature, peak, log_total, wanted, above, vocabulary, MASS: tl.constexpr, BLOCK: tl.constexpr, UNUSED: tl.constexpr
):
    """The largest key that `wanted` logits, or logits of that mass, reach."""
    key = tl.full((), 0, tl.int64)
    for step in range(32 - UNUSED):
        trial = key + (tl.full((), 1, tl.int64) << (31 - step))
        found = _reached(logits, row, temperature, peak, log_total, trial, above, vocabulary, MASS, BLOCK)
        key = tl.where(found >= wanted, trial, key)
    return key


@triton.jit
def _support(
    logits, temperatures, parts, places, normaliser, best, threshold, top_ks, top_ps, min_ps, count, vocabulary, slices,
    BLOCK: tl.constexpr, UNUSED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    peak = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    highest, place = peak, tl.full((), 0, tl.int64)
    for number in range(slices):
        slice_peak = tl.load(parts + number * count + row)
        at = tl.load(places + number * count + row)
        raw = tl.load(logits + row * vocabulary + at).to(tl.float32)
        place = tl.where(raw > highest, at, place)
        highest = tl.maximum(highest, raw)
        to = tl.maximum(peak, slice_peak)
        base = tl.where(to == float("-inf"), 0.0, to)
        total = total * tl.exp(peak - base) + tl.load(parts + slices * count + number * count + row) * tl.exp(slice_peak - base)
        peak = to
    log_total = tl.log(total)
    tl.store(normaliser + 2 * row, peak)
    tl.store(normaliser + 2 * row + 1, log_total)
    tl.store(best + row, place)
    least = tl.full((), 0, tl.int64)
    share = tl.full((), 1.0, tl.float64)
    if top_ks is not None:
        top_k = tl.load(top_ks + row)
        if (top_k > 0) & (top_k < vocabulary):
            least = _search(logits, row, temperature, peak, log_total, top_k.to(tl.float64), least, vocabulary, False, BLOCK, UNUSED)
            share = _reached(logits, row, temperature, peak, log_total, least, least, vocabulary, True, BLOCK)
    top_least = least
    if top_ps is not None:
        top_p = tl.load(top_ps + row)
        if top_p < 1.0:
            mass_least = _search(logits, row, temperature, peak, log_total, top_p * share, top_least, vocabulary, True, BLOCK, UNUSED)
            least = tl.maximum(least, mass_least)
    if min_ps is not None:
        min_p = tl.load(min_ps + row).to(tl.float32)
        lowest = tl.where(min_p > 0.0, highest + temperature * tl.log(min_p), float("-inf"))
        least = tl.maximum(least, _key(lowest))
    tl.store(threshold + row, least)


@triton.jit
def _masses(logits, temperatures, normaliser, threshold, masses, count, vocabulary, SLICE: tl.constexpr, BLOCK: tl.constexpr):
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature, least = tl.load(temperatures + row), tl.load(threshold + row)
    peak, log_total = tl.load(normaliser + 2 * row), tl.load(normaliser + 2 * row + 1)
    end = min(number * SLICE + SLICE, vocabulary)
    mass = tl.full((), 0.0, tl.float64)
    for start in range(number * SLICE, end, BLOCK):
        value = _load(logits, row, start + tl.arange(0, BLOCK), end, vocabulary)
        mass += tl.sum(_weight(value, temperature, peak, log_total, least).to(tl.float64), 0)
    tl.store(masses + number * count + row, mass)


@triton.jit
def _draw(
    logits, temperatures, normaliser, threshold, masses, best, uniforms, greedy, ids, logprobs, support_logprobs,
    count, vocabulary, slices, SLICE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, draw = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = row * tl.num_programs(1) + draw
    temperature, least = tl.load(temperatures + row), tl.load(threshold + row)
    peak, log_total = tl.load(normaliser + 2 * row), tl.load(normaliser + 2 * row + 1)
    mass = tl.full((), 0.0, tl.float64)
    for number in range(slices):
        mass += tl.load(masses + number * count + row)
    target = tl.load(uniforms + place) * mass
    before = tl.full((), 0.0, tl.float64)
    found = tl.full((), 0, tl.int64)
    searching = True
    chosen = tl.full((), 0, tl.int32)
    for number in range(slices):
        after = before + tl.load(masses + number * count + row)
        here = searching & (after > target)
        chosen = tl.where(here, number, chosen)
        searching = searching & (after <= target)
        before = tl.where(searching, after, before)
    # The first token of the slice whose cumulative mass exceeds the target; where rounding leaves none, the last that has any.
    end = min(chosen * SLICE + SLICE, vocabulary)
    looking = True
    for start in range(chosen * SLICE, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        weight = _weight(_load(logits, row, columns, end, vocabulary), temperature, peak, log_total, least).to(tl.float64)
        cumulative = before + tl.cumsum(weight, 0)
        passed = (cumulative > target) & (weight > 0.0)
        first = tl.min(tl.where(passed, columns, vocabulary), 0)
        last = tl.max(tl.where(weight > 0.0, columns, -1), 0)
        candidate = tl.where(first < vocabulary, first, last)
        found = tl.where(looking & (candidate >= 0), candidate, found)
        looking = looking & (first == vocabulary)
        before += tl.sum(weight, 0)
    if greedy is not None:
        found = tl.where(tl.load(greedy + row), tl.load(best + row), found)
    logprob = tl.load(logits + row * vocabulary + found).to(tl.float32) / temperature - peak - log_total
    tl.store(ids + place, found)
    tl.store(logprobs + place, logprob)
    tl.store(support_logprobs + place, tl.minimum(logprob - tl.log(mass).to(tl.float32), 0.0))
