"""Kernels of `sample`; the docstring of `gradbus_kernels.operators.sample.triton` describes how they work together.

Weights are multiples of the likeliest token's probability. A key is an integer that orders like the logits.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOWEST = tl.constexpr(-(1 << 31))


@triton.jit
def _key(value):
    """An int32 that orders like the float32 numbers."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _columns(start, HEIGHT: tl.constexpr, GROUP: tl.constexpr):
    """`[HEIGHT, GROUP]` neighbouring columns."""
    return start + tl.arange(0, HEIGHT)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def _load(logits, row, columns, vocabulary):
    return tl.load(logits + row * vocabulary + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32)


@triton.jit
def power(value, peak, temperature) -> tl.tensor:
    """`exp((value - peak) / temperature)`, with a multiplication and no division for each value; 0 for -inf, also if the peak is -inf."""
    return tl.exp2((value - tl.where(peak == float("-inf"), 0.0, peak)) * (1.4426950408889634 / temperature))


@triton.jit
def statistics_kernel(
    logits, temperatures, apart, peaks, totals, highest, maxima, vocabulary, slices, groups, SLICE: tl.constexpr, GROUP: tl.constexpr
) -> None:
    """The first kernel."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    value = _load(logits, row, _columns(number * SLICE, SLICE // GROUP, GROUP), vocabulary)
    group = number * (SLICE // GROUP) + tl.arange(0, SLICE // GROUP)
    maximum = tl.max(value, 1)
    peak = tl.max(maximum, 0)
    if maxima is not None:
        tl.store(maxima + row * groups + group, maximum.to(maxima.dtype.element_ty), mask=group < groups)
    at = row * slices + number
    tl.store(peaks + at, peak)
    tl.store(totals + at, tl.sum(power(value, peak, tl.load(temperatures + row * apart))))
    tl.store(highest + at, tl.min(tl.where(maximum == peak, group, groups - 1), 0))


@triton.jit
def candidates_kernel(
    maxima, chosen, floors, groups, GROUPS: tl.constexpr, ROOM: tl.constexpr, UNUSED: tl.constexpr
) -> None:  # fmt: skip
    """The second kernel."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    maximum = tl.load(maxima + row * groups + group, mask=group < groups, other=float("-inf")).to(tl.float32)
    keys = tl.where(group < groups, _key(maximum), _LOWEST)
    too_low = _search(keys, 1, None, ROOM + 1, _LOWEST, False, 1, 1, UNUSED)
    floor = tl.minimum(too_low.to(tl.int64) + (1 << UNUSED), 0x7FFFFFFF).to(tl.int32)
    kept = keys >= floor
    tl.store(chosen + row * ROOM + tl.cumsum(kept.to(tl.int32), 0) - 1, group, mask=kept)
    slot = tl.arange(0, ROOM)
    tl.store(chosen + row * ROOM + slot, groups, mask=slot >= tl.sum(kept.to(tl.int32)))  # means no group
    tl.store(floors + row, floor)


@triton.jit
def _weight(value, temperature, peak, least):
    """Probability as a multiple of the likeliest token's within the support, 0 outside."""
    return tl.where(_key(value) >= least, power(value, peak, temperature), 0.0)


@triton.jit
def _amount_above(keys, amounts, least):
    """The sum of the amounts whose key is `least` or above."""
    return tl.sum(tl.where(keys >= least, amounts, 0)).to(tl.float64)


@triton.jit
def _amount_above_in_row(wide, least, MASS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """The same for a whole row: the number of its logits, or their mass."""
    logits, row, temperature, peak, vocabulary = wide
    amount = tl.full((), 0.0, tl.float64)
    for start in range(0, vocabulary, BLOCK):
        columns = _columns(start, BLOCK // GROUP, GROUP)
        value = _load(logits, row, columns, vocabulary)
        if MASS:
            amount += tl.sum(_weight(value, temperature, peak, least)).to(tl.float64)
        else:
            amount += tl.sum(((_key(value) >= least) & (columns < vocabulary)).to(tl.int32)).to(tl.float64)
    return amount


@triton.jit
def _search(keys, amounts, wide, wanted, above, MASS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, UNUSED: tl.constexpr):
    """The largest key such that amounts of at least `wanted` have it or a higher one, among keys from `above` on; else the lowest key."""
    key = tl.full((), _LOWEST, tl.int64)
    for step in range(32 - UNUSED):
        trial = key + (tl.full((), 1, tl.int64) << (31 - step))
        least = tl.maximum(trial, above).to(tl.int32)
        amount = _amount_above(keys, amounts, least) if wide is None else _amount_above_in_row(wide, least, MASS, BLOCK, GROUP)
        key = tl.where(amount >= wanted, trial, key)
    return key.to(tl.int32)


@triton.jit
def _threshold(
    keys, weights, wide, total, top_k, top_p, lowest, vocabulary, BLOCK: tl.constexpr, GROUP: tl.constexpr, UNUSED: tl.constexpr
):
    """The least key that top-k keeps, and the least key in the support: among the candidates, or in a whole row."""
    top_least = tl.full((), _LOWEST, tl.int32)
    share = total.to(tl.float64)
    if (top_k > 0) & (top_k < vocabulary):
        top_least = _search(keys, 1, wide, top_k, _LOWEST, False, BLOCK, GROUP, UNUSED)
        share = _amount_above(keys, weights, top_least) if wide is None else _amount_above_in_row(wide, top_least, True, BLOCK, GROUP)
    least = tl.maximum(top_least, lowest)
    if top_p < 1.0:
        least = tl.maximum(least, _search(keys, weights, wide, top_p * share, top_least, True, BLOCK, GROUP, UNUSED))
    return top_least, least


@triton.jit
def _pick(masses, target):
    """The index where the running sum of masses first exceeds the target, and the sum before it.

    If rounding leaves no such index, the last one with a mass above 0.
    """
    index = tl.arange(0, masses.shape[0])
    passed = (tl.cumsum(masses, 0) > target) & (masses > 0.0)
    first = tl.min(tl.where(passed, index, masses.shape[0]), 0)
    last = tl.max(tl.where(masses > 0.0, index, 0), 0)
    chosen = tl.where(first < masses.shape[0], first, last)
    return chosen, tl.sum(tl.where(index < chosen, masses, 0.0), 0)


@triton.jit
def _pick_of_groups(weights, target):
    """The group, and the index in it, where the running sum of weights `[groups, size]` first exceeds the target."""
    group, before = _pick(tl.sum(weights.to(tl.float64), 1), target)
    own = tl.where(tl.arange(0, weights.shape[0])[:, None] == group, weights, 0.0)
    index, _ = _pick(tl.sum(own, 0).to(tl.float64), target - before)
    return group, index


@triton.jit
def _pick_of_slices(masses, target, wide, SLICE: tl.constexpr, GROUP: tl.constexpr):
    """The token of a row without a cut-off, by its slices' masses."""
    logits, row, temperature, peak, vocabulary = wide
    number, before = _pick(masses, target)
    value = _load(logits, row, _columns(number * SLICE, SLICE // GROUP, GROUP), vocabulary)
    group, index = _pick_of_groups(_weight(value, temperature, peak, _LOWEST), target - before)
    return number * SLICE + group * GROUP + index


@triton.jit
def _pick_of_row(target, wide, least, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """The token of a row with a wide support."""
    logits, row, temperature, peak, vocabulary = wide
    found = tl.full((), 0, tl.int32)
    before = tl.full((), 0.0, tl.float64)
    for start in range(0, vocabulary, BLOCK):
        value = _load(logits, row, _columns(start, BLOCK // GROUP, GROUP), vocabulary)
        weights = _weight(value, temperature, peak, least)
        mass = tl.sum(weights.to(tl.float64))
        if (before <= target) & (mass > 0.0):
            group, index = _pick_of_groups(weights, target - before)
            found = start + group * GROUP + index
        before += mass
    return found


@triton.jit
def _first_at(peak, start, logits, row, vocabulary, GROUP: tl.constexpr):
    """The first token of a group whose logit is `peak`."""
    columns = start + tl.arange(0, GROUP)
    return tl.min(tl.where(_load(logits, row, columns, vocabulary) == peak, columns, vocabulary - 1), 0)


@triton.jit
def _row_params(top_ks, top_k_apart, top_ps, top_p_apart, min_ps, min_p_apart, row, temperature, peak):
    """Top-k and top-p of a row, and the least key that min-p keeps."""
    top_k, top_p, lowest = tl.full((), 0, tl.int64), tl.full((), 1.0, tl.float64), tl.full((), _LOWEST, tl.int32)
    if top_ks is not None:
        top_k = tl.load(top_ks + row * top_k_apart)
    if top_ps is not None:
        top_p = tl.load(top_ps + row * top_p_apart)
    if min_ps is not None:
        min_p = tl.load(min_ps + row * min_p_apart).to(tl.float32)
        lowest = tl.where(min_p > 0.0, _key(peak + temperature * tl.log(min_p)), lowest)
    return top_k, top_p, lowest


@triton.jit
def _support(group, floor, wide, total, top_k, top_p, lowest, BLOCK: tl.constexpr, GROUP: tl.constexpr, UNUSED: tl.constexpr):
    """The candidates' weights within the support, its least key and its mass; whether it is the whole row; whether candidates hold it."""
    logits, row, temperature, peak, vocabulary = wide
    top_k_off = (top_k == 0) | (top_k >= vocabulary)
    whole, narrow = top_k_off & (top_p == 1.0) & (lowest == _LOWEST), tl.full((), False, tl.int1)
    least, mass = tl.full((), _LOWEST, tl.int32), total
    columns = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = _load(logits, row, columns, vocabulary)
    keys = tl.where(columns < vocabulary, _key(value), _LOWEST)
    weights = _weight(value, temperature, peak, _LOWEST)
    if whole == 0:
        top_least, least = _threshold(keys, weights, None, total, top_k, top_p, lowest, vocabulary, BLOCK, GROUP, UNUSED)
        narrow = (top_k_off | (top_least >= floor)) & (least >= floor)
        if narrow == 0:
            _, least = _threshold(None, None, wide, total, top_k, top_p, lowest, vocabulary, BLOCK, GROUP, UNUSED)
            mass = _amount_above_in_row(wide, least, True, BLOCK, GROUP)
    weights = tl.where(keys >= least, weights, 0.0)
    if narrow:
        mass = tl.sum(weights.to(tl.float64))
    return weights, least, mass, whole, narrow


@triton.jit
def draw_kernel(
    logits, temperatures, apart, peaks, totals, highest, candidates, floors, top_ks, top_k_apart, top_ps, top_p_apart, min_ps, min_p_apart,
    greedy, greedy_apart, uniforms, ids, logprobs, support_logprobs, vocabulary, slices, draws,
    CUT: tl.constexpr, SLICES: tl.constexpr, SLICE: tl.constexpr, GROUP: tl.constexpr, ROOM: tl.constexpr,
    BLOCK: tl.constexpr, UNUSED: tl.constexpr,
) -> None:  # fmt: skip
    """The third kernel."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row * apart)
    at, inside = row * slices + tl.arange(0, SLICES), tl.arange(0, SLICES) < slices
    slice_peaks = tl.load(peaks + at, mask=inside, other=float("-inf"))
    peak = tl.max(slice_peaks, 0)
    masses = (tl.load(totals + at, mask=inside, other=0.0) * power(slice_peaks, peak, temperature)).to(tl.float64)
    total = tl.sum(masses, 0)
    wide = logits, row, temperature, peak, vocabulary
    mass, whole = total, tl.full((), True, tl.int1)
    if CUT:
        top_k, top_p, lowest = _row_params(top_ks, top_k_apart, top_ps, top_p_apart, min_ps, min_p_apart, row, temperature, peak)
        group = tl.load(candidates + row * ROOM + tl.arange(0, ROOM))
        weights, least, mass, whole, narrow = _support(
            group, tl.load(floors + row), wide, total, top_k, top_p, lowest, BLOCK, GROUP, UNUSED
        )  # fmt: skip
    best, takes_best = tl.full((), 0, tl.int32), tl.full((), False, tl.int1)
    if greedy is not None:
        takes_best = tl.load(greedy + row * greedy_apart)
        first = tl.min(tl.where(slice_peaks == peak, tl.load(highest + at, mask=inside, other=0), vocabulary), 0)
        best = _first_at(peak, tl.minimum(first * GROUP, vocabulary - 1), logits, row, vocabulary, GROUP)
    for draw in range(draws):
        target = tl.load(uniforms + row * draws + draw) * mass
        found = best
        if takes_best == 0:
            if whole:
                found = _pick_of_slices(masses, target, wide, SLICE, GROUP)
            elif CUT:
                if narrow:
                    slot, index = _pick_of_groups(weights, target)
                    found = tl.load(candidates + row * ROOM + slot) * GROUP + index
                else:
                    found = _pick_of_row(target, wide, least, BLOCK, GROUP)
        found = tl.minimum(found, vocabulary - 1)  # only NaN gets beyond
        logprob = (tl.load(logits + row * vocabulary + found).to(tl.float32) - peak) / temperature
        tl.store(ids + row * draws + draw, found.to(tl.int64))
        tl.store(logprobs + row * draws + draw, logprob - tl.log(total.to(tl.float32)))
        tl.store(support_logprobs + row * draws + draw, tl.minimum(logprob - tl.log(mass.to(tl.float32)), 0.0))
