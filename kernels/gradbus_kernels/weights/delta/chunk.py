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
from typing import Final, NamedTuple

import numpy as np

from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, Reader, Writer
from gradbus_kernels.weights.delta.loops import Bits, Indices, Loops
from gradbus_kernels.weights.delta.numpy_loops import magnitudes
from gradbus_kernels.weights.delta.subset import read_subset, write_subset

SMALL_SHARE: Final = 1 / 128
"""The least share of the weights that is listed as small."""
DENSE: Final = 1 / 4
"""From this share of changes on, all weights are listed as small."""
MIN_CHANGES: Final = 64
"""With fewer changes no weight is listed as small, because the list saves too little for its time."""
SAMPLE: Final = 4096
PIECES: Final = 64
PIECE: Final = 1024
"""Elements of each of the pieces by which the changes are estimated."""
BLOCK_BYTES: Final = 1 << 20
"""Bytes compared, copied and checked together: old and new ones stay in a core's caches. With smaller blocks threads wait for the
interpreter more often than they compute."""

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
    sample = np.sort(magnitudes(old[:: max(1, len(old) // SAMPLE)]))
    guess = _choose_limit(sample, _estimate_changes(old, new), len(old), form)
    found = _compare(old, new, guess, loops, visit)
    changes = len(found.large) + len(found.ranks)
    if not changes:
        return b""
    limit = _choose_limit(sample, changes, len(old), form)
    if limit != guess:
        found = _compare(old, new, limit, loops, lambda _: None)
    out = Writer()
    out.number(limit >> form.fraction)
    write_subset(out, found.large, len(old), loops)
    if 0 < limit < form.all_small:
        out.number(found.small_count)
    write_subset(out, found.ranks, found.small_count, loops)
    for steps in (found.large_steps, found.small_steps):
        _write_steps(out, steps, form, loops)
    return out.done()


class _Changes(NamedTuple):
    """The changes of a chunk."""

    large: Indices
    ranks: Indices
    """Which of the small weights changed."""
    large_steps: Bits
    small_steps: Bits
    small_count: int


def apply_chunk(content: memoryview, old: Bits, new: Bits, form: FloatFormat, loops: Loops, visit: Visit) -> None:
    """Fills `new` and visits its blocks. Raises DamagedDeltaError for content that no encoder wrote."""
    limit, found = _read_changes(Reader(content), len(old), form, loops)
    cursor = 0, 0, 0, 0
    for block in blocks(old):
        cursor = loops.rebuild(old[block], new[block], limit, found[:2], found[2:4], cursor)
        visit(block)
    if cursor[2:] != (len(found.ranks), found.small_count):
        raise DamagedDeltaError(f"{found.small_count} small weights are announced where there are {cursor[3]}")


def _compare(old: Bits, new: Bits, limit: int, loops: Loops, visit: Visit) -> _Changes:
    parts = []
    seen = 0
    for block in blocks(old):
        visit(block)
        *part, seen = loops.compare(old[block], new[block], limit, block.start, seen)
        parts.append(part)
    large, ranks, large_steps, small_steps = (np.concatenate(lists) for lists in zip(*parts, strict=True))
    return _Changes(large, ranks, large_steps, small_steps, seen)


def _read_changes(source: Reader, size: int, form: FloatFormat, loops: Loops) -> tuple[int, _Changes]:
    limit = source.number(form.all_small >> form.fraction) << form.fraction
    large = read_subset(source, size, loops)
    count = source.number(size) if 0 < limit < form.all_small else size if limit else 0
    ranks = read_subset(source, count, loops)
    found = _Changes(large, ranks, _read_steps(source, len(large), form, loops), _read_steps(source, len(ranks), form, loops), count)
    if source.left:
        raise DamagedDeltaError(f"{source.left} bytes are left over")
    return limit, found


def _write_steps(out: Writer, steps: Bits, form: FloatFormat, loops: Loops) -> None:
    signed = steps.view(f"i{form.width // 8}")
    out.bits(signed < 0)
    _write_sizes(out, np.abs(signed).view(steps.dtype), form, loops)


def _read_steps(source: Reader, count: int, form: FloatFormat, loops: Loops) -> Bits:
    negative = source.bits(count).astype(f"u{form.width // 8}")
    sizes = _read_sizes(source, count, form, loops)
    steps: Bits = np.bitwise_xor(sizes, np.negative(negative)) + negative  # several times faster than `np.where`
    return steps


def _write_sizes(out: Writer, sizes: Bits, form: FloatFormat, loops: Loops) -> None:
    """Writes positive integers by Elias's gamma code: level by level, the subset that has another bit, and that bit."""
    for level in range(1, form.width):
        if not len(sizes):
            break
        count = len(sizes)
        longer, sizes, plane = loops.longer(sizes, level)
        write_subset(out, longer, count, loops)
        out.raw(plane.tobytes())


def _read_sizes(source: Reader, count: int, form: FloatFormat, loops: Loops) -> Bits:
    sizes = np.ones(count, f"u{form.width // 8}")
    longer: Indices = np.arange(count)
    for _ in range(1, form.width):
        if not len(longer):
            break
        longer = longer[read_subset(source, len(longer), loops)]
        plane = np.frombuffer(source.raw((len(longer) + 7) // 8), np.uint8)
        loops.lengthen(sizes, longer, plane)
    return sizes


def _estimate_changes(old: Bits, new: Bits) -> int:
    """From pieces all over the chunk. A wrong number costs time alone."""
    stride = len(old) // PIECES
    before, after = (bits[: PIECES * stride].reshape(PIECES, stride)[:, :PIECE] for bits in (old, new))
    return int(np.count_nonzero(before != after)) * len(old) // max(1, before.size)


def _choose_limit(sample: Bits, changes: int, size: int, form: FloatFormat) -> int:
    """The power of two, as the bits of a float, below which weights are listed as small: about as many as change.

    `sample` has some magnitudes in order.
    """
    if changes < MIN_CHANGES:
        return 0
    share = max(changes / size, SMALL_SHARE)
    if share > DENSE:
        return form.all_small
    return int(sample[int(len(sample) * share)] >> form.fraction << form.fraction)
