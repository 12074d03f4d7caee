"""Codes the changes of a chunk of weights, given the old weights.

A small step moves a weight by about (step / ulp) units in the last place: a large weight seldom changes, and then by one unit; a
small one changes often and by more. Encoder and decoder both have the old weights, so the list of small weights is not stored but
found by comparison. For the large weights and for the list, the code has the subset that changed, and the changes.
A change is a number of steps between integers that order like the floats. Every bit pattern has such an integer (NaN, infinity, -0
and subnormals too), and they wrap around, so any change can be coded.

Layout: the exponent of the limit below which a weight is small; the large weights that changed, as a subset of all; the number of
small weights, unless none or all are; those that changed, as a subset of the small ones; then for the large and for the small ones
the signs of the changes and their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, Reader, Writer
from gradbus_kernels.weights.delta.loops import Bits, Indices, Loops
from gradbus_kernels.weights.delta.numpy_loops import magnitudes, signs
from gradbus_kernels.weights.delta.subset import read_subset, write_subset

SMALL_SHARE: Final = 1 / 128
"""The least share of the weights that is listed as small."""
DENSE: Final = 1 / 4
"""From this share of changes on, all weights are listed as small."""
MIN_CHANGES: Final = 64
"""With fewer changes no weight is listed as small, because the list saves too little for its time."""
SAMPLE: Final = 4096
BLOCK_BYTES: Final = 1 << 19
"""Bytes compared, copied and checked together: old and new ones stay in a core's second cache."""

Visit = Callable[[slice], None]
"""Called with each block of a chunk, in order, while its elements are in the cache."""


class FloatFormat(NamedTuple):
    """The layout of a float: a sign, the exponent, the fraction."""

    name: str
    """As safetensors spells it."""
    width: int
    fraction: int
    """Bits of the fraction."""

    @property
    def all_small(self) -> int:
        """The limit below which every magnitude is."""
        return 1 << self.width - 1


def blocks(bits: Bits) -> Iterator[slice]:
    """The blocks of a chunk."""
    size = BLOCK_BYTES // bits.itemsize
    return (slice(begin, min(begin + size, len(bits))) for begin in range(0, len(bits), size))


def encode_chunk(old: Bits, new: Bits, form: FloatFormat, loops: Loops, visit: Visit) -> bytes:
    """The changes from `old` to `new`, of equal length; empty if they are equal. Visits the blocks of both."""
    places, before, after = _changes(old, new, loops, visit)
    if not len(places):
        return b""
    out = Writer()
    limit = _choose_limit(old, len(places), form)
    large, small, large_steps, small_steps = loops.split(places, before, after, limit)
    ranks, count = loops.ranks(old, limit, small) if limit else (small, 0)
    out.number(limit >> form.fraction)
    write_subset(out, large, len(old), loops)
    if 0 < limit < form.all_small:
        out.number(count)
    write_subset(out, ranks, count, loops)
    for steps in (large_steps, small_steps):
        _write_steps(out, steps, form, loops)
    return out.done()


class _Changes(NamedTuple):
    """The decoded changes of a chunk."""

    limit: int
    large: Indices
    small_count: int
    ranks: Indices
    """Which of the small weights changed."""
    large_steps: Bits
    small_steps: Bits


def apply_chunk(content: memoryview, old: Bits, new: Bits, form: FloatFormat, loops: Loops, visit: Visit) -> None:
    """Fills `new` and visits its blocks. Raises DamagedDeltaError for content that no encoder wrote."""
    found = _read_changes(Reader(content), len(old), form, loops)
    seen = done = 0
    edges = [block.start for block in blocks(old)] + [len(old)]
    cuts = np.searchsorted(found.large, edges).tolist()
    for block, (first, last) in zip(blocks(old), pairwise(cuts), strict=True):
        np.copyto(new[block], old[block])
        loops.patch(new, found.large[first:last], found.large_steps[first:last])
        if found.limit:
            places, count = loops.locate(old[block], found.limit, found.ranks[done:], seen, block.start)
            loops.patch(new, places, found.small_steps[done : done + len(places)])
            seen, done = seen + count, done + len(places)
        visit(block)
    if seen != found.small_count or done != len(found.ranks):
        raise DamagedDeltaError(f"{found.small_count} small weights are announced where there are {seen}")


def _changes(old: Bits, new: Bits, loops: Loops, visit: Visit) -> tuple[Indices, Bits, Bits]:
    found = []
    for block in blocks(old):
        visit(block)
        found.append(loops.changes(old[block], new[block], block.start))
    places, before, after = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return places, before, after


def _read_changes(source: Reader, size: int, form: FloatFormat, loops: Loops) -> _Changes:
    limit = source.number(form.all_small >> form.fraction) << form.fraction
    large = read_subset(source, size, loops)
    count = source.number(size) if 0 < limit < form.all_small else size if limit else 0
    ranks = read_subset(source, count, loops)
    found = _Changes(limit, large, count, ranks, _read_steps(source, len(large), form, loops), _read_steps(source, len(ranks), form, loops))
    if source.left:
        raise DamagedDeltaError(f"{source.left} bytes are left over")
    return found


def _write_steps(out: Writer, steps: Bits, form: FloatFormat, loops: Loops) -> None:
    negative = signs(steps)
    out.bits(negative != 0)
    _write_sizes(out, _negated(steps, negative), form, loops)


def _read_steps(source: Reader, count: int, form: FloatFormat, loops: Loops) -> Bits:
    negative = source.bits(count).astype(f"u{form.width // 8}")
    return _negated(_read_sizes(source, count, form, loops), negative)


def _write_sizes(out: Writer, sizes: Bits, form: FloatFormat, loops: Loops) -> None:
    """Writes positive integers by Elias's gamma code: level by level, the subset that has another bit, and that bit."""
    for level in range(1, form.width):
        if not len(sizes):
            break
        longer = np.flatnonzero(sizes >= 1 << level)
        write_subset(out, longer, len(sizes), loops)
        sizes = sizes[longer]
        lengths = np.frexp(sizes.astype(np.float64))[1].astype(sizes.dtype) - sizes.dtype.type(1)
        out.bits((sizes >> lengths - sizes.dtype.type(level) & 1) != 0)


def _read_sizes(source: Reader, count: int, form: FloatFormat, loops: Loops) -> Bits:
    sizes = np.ones(count, f"u{form.width // 8}")
    longer: Indices = np.arange(count)
    for _ in range(1, form.width):
        if not len(longer):
            break
        longer = longer[read_subset(source, len(longer), loops)]
        sizes[longer] = sizes[longer] * 2 + source.bits(len(longer))
    return sizes


def _choose_limit(old: Bits, count: int, form: FloatFormat) -> int:
    """The power of two, as the bits of a float, below which weights are listed as small: about as many as change."""
    if count < MIN_CHANGES:
        return 0
    share = max(count / len(old), SMALL_SHARE)
    if share > DENSE:
        return form.all_small
    sample = np.sort(magnitudes(old[:: max(1, len(old) // SAMPLE)]))
    return int(sample[int(len(sample) * share)] >> form.fraction << form.fraction)


def _negated(values: Bits, chosen: Bits) -> Bits:
    """The values, negated where `chosen` is 1; several times faster than `np.where`."""
    return np.bitwise_xor(values, np.negative(chosen)) + chosen
