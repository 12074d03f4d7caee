"""Codes the changes of a chunk of weights, given the old weights.

A small step moves a weight by about (step / ulp) units in the last place: a large weight seldom changes, and then by one unit; a
small one changes often and by more. Encoder and decoder both have the old weights, so the list of small weights is not stored but
found by comparison. For the large weights and for the list, the code has the subset that changed, and the changes.
A change is a difference of ranks, integers that order like the floats. Every bit pattern has a rank (NaN, infinity, -0 and
subnormals too), and ranks wrap around, so any change can be coded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, Reader, Writer
from gradbus_kernels.weights.delta.subset import Indices, read_subset, set_bit_indices, write_subset

Bits = NDArray[np.unsignedinteger[Any]]
"""Floats as unsigned integers of their width."""

SMALL_SHARE: Final = 1 / 128
"""The least share of the weights that is listed as small."""
DENSE: Final = 1 / 4
"""From this share of changes on, all weights are listed as small."""
MIN_CHANGES: Final = 64
"""With fewer changes no weight is listed as small, because the list saves too little for its time."""
SAMPLE: Final = 4096
BLOCK: Final = 1 << 17
"""Elements compared together: they stay in a core's cache."""


class FloatFormat(NamedTuple):
    """The layout of a float: a sign, the exponent, the fraction."""

    name: str
    """As safetensors spells it."""
    width: int
    fraction: int
    """Bits of the fraction."""


def encode_chunk(old: Bits, new: Bits, form: FloatFormat) -> bytes:
    """The changes from `old` to `new`, of equal length; empty if they are equal."""
    changed = _indices(len(old), lambda block: old[block] != new[block])
    if not len(changed):
        return b""
    out = Writer()
    limit = _choose_limit(old, len(changed), form)
    out.number(limit)
    large = np.sort(changed[_magnitudes(old.take(changed), form) >= limit])
    write_subset(out, large, len(old))
    small = _small_indices(old, limit, form)
    chosen = np.flatnonzero(old.take(small) != new.take(small))
    write_subset(out, chosen, len(small))
    for part in (large, small.take(chosen)):
        _write_steps(out, _ranks(new.take(part), form) - _ranks(old.take(part), form), form)
    return out.done()


def apply_chunk(content: memoryview, old: Bits, new: Bits, form: FloatFormat) -> None:
    """Applies the changes to `new`, which holds a copy of `old`. Raises DamagedDeltaError for content that no encoder wrote."""
    source = Reader(content)
    limit = source.number(1 << form.width - 1)
    large = read_subset(source, len(old))
    small = _small_indices(old, limit, form)
    chosen = read_subset(source, len(small))
    for part in (large, small.take(chosen)):
        new[part] = _from_ranks(_ranks(old.take(part), form) + _read_steps(source, len(part), form), form)
    if source.left:
        raise DamagedDeltaError(f"{source.left} bytes are left over")


def _write_steps(out: Writer, steps: Bits, form: FloatFormat) -> None:
    negative = _signs(steps, form)
    out.bits(negative != 0)
    _write_sizes(out, _negated(steps, negative), form)


def _read_steps(source: Reader, count: int, form: FloatFormat) -> Bits:
    negative = source.bits(count).astype(f"u{form.width // 8}")
    return _negated(_read_sizes(source, count, form), negative)


def _write_sizes(out: Writer, sizes: Bits, form: FloatFormat) -> None:
    """Writes positive integers by Elias's gamma code: level by level, the subset that has another bit, and that bit."""
    lengths = np.frexp(sizes.astype(np.float64))[1].astype(sizes.dtype) - sizes.dtype.type(1)
    for level in range(1, form.width):
        if not len(sizes):
            break
        longer = np.flatnonzero(lengths >= level)
        write_subset(out, longer, len(sizes))
        sizes, lengths = sizes[longer], lengths[longer]
        out.bits((sizes >> lengths - level & 1) != 0)


def _read_sizes(source: Reader, count: int, form: FloatFormat) -> Bits:
    sizes = np.ones(count, f"u{form.width // 8}")
    longer = np.arange(count)
    for _ in range(1, form.width):
        if not len(longer):
            break
        longer = longer[read_subset(source, len(longer))]
        sizes[longer] = sizes[longer] * 2 + source.bits(len(longer))
    return sizes


def _choose_limit(old: Bits, changes: int, form: FloatFormat) -> int:
    """The power of two, as the bits of a float, below which weights are listed as small: about as many as change."""
    if changes < MIN_CHANGES:
        return 0
    share = max(changes / len(old), SMALL_SHARE)
    if share > DENSE:
        return 1 << form.width - 1
    sample = np.sort(_magnitudes(old[:: max(1, len(old) // SAMPLE)], form))
    return int(sample[int(len(sample) * share)] >> form.fraction << form.fraction)


def _small_indices(old: Bits, limit: int, form: FloatFormat) -> Indices:
    if limit == 1 << form.width - 1:
        return np.arange(len(old))
    return _indices(len(old) if limit else 0, lambda block: _magnitudes(old[block], form) < limit)


def _indices(size: int, test: Callable[[slice], NDArray[np.bool_]]) -> Indices:
    """The indices for which `test`, called with a block at a time, is true, in the order of `set_bit_indices`."""
    words = np.zeros(-(-size // 64), np.uint64)
    packed = words.view(np.uint8)
    for begin in range(0, size, BLOCK):
        part = np.packbits(test(slice(begin, begin + BLOCK)), bitorder="little")
        packed[begin // 8 : begin // 8 + len(part)] = part
    return set_bit_indices(words)


def _magnitudes(bits: Bits, form: FloatFormat) -> Bits:
    return np.bitwise_and(bits, bits.dtype.type((1 << form.width - 1) - 1))


def _signs(bits: Bits, form: FloatFormat) -> Bits:
    return np.right_shift(bits, bits.dtype.type(form.width - 1))


def _negated(values: Bits, chosen: Bits) -> Bits:
    """The values, negated where `chosen` is 1; several times faster than `np.where`."""
    return np.bitwise_xor(values, np.negative(chosen)) + chosen


def _ranks(bits: Bits, form: FloatFormat) -> Bits:
    """Inverts all bits of a negative float, and the sign bit of any other."""
    turned: Bits = np.negative(_signs(bits, form)) | bits.dtype.type(1 << form.width - 1)
    return np.bitwise_xor(bits, turned)


def _from_ranks(ranks: Bits, form: FloatFormat) -> Bits:
    turned: Bits = (_signs(ranks, form) - ranks.dtype.type(1)) | ranks.dtype.type(1 << form.width - 1)
    return np.bitwise_xor(ranks, turned)
