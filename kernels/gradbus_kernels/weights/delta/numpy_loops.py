"""The loops of the codec in numpy: the reference, and what runs where numba does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.unsignedinteger[Any]]
Bytes = NDArray[np.uint8]
Indices = NDArray[np.intp]

BLOCK: Final = 1 << 17
"""Elements compared together: they stay in a core's cache."""


def changes(old: Bits, new: Bits, begin: int) -> tuple[Indices, Bits, Bits]:
    """See `Loops`, as for all functions here."""
    places = _set_indices(old != new)
    return places + begin, old.take(places), new.take(places)


def split(places: Indices, before: Bits, after: Bits, limit: int) -> tuple[Indices, Indices, Bits, Bits]:
    """Selects by flags."""
    small = magnitudes(before) < limit
    steps = ordered(after) - ordered(before)
    return places[~small], places[small], steps[~small], steps[small]


def ranks(old: Bits, limit: int, places: Indices) -> tuple[Indices, int]:
    """Searches the list of all small elements."""
    parts = [_set_indices(magnitudes(old[block]) < limit) + block.start for block in _blocks(old)]
    small = np.concatenate(parts) if parts else np.zeros(0, np.intp)
    return np.searchsorted(small, places), len(small)


def locate(old: Bits, limit: int, ranks: Indices, seen: int, begin: int) -> tuple[Indices, int]:
    """Looks up the list of all small elements."""
    small = _set_indices(magnitudes(old) < limit)
    inside = ranks[: np.searchsorted(ranks, seen + len(small))]
    return small.take(inside - seen) + begin, len(small)


def patch(new: Bits, places: Indices, steps: Bits) -> None:
    """Gathers, adds to the ranks of the floats, scatters."""
    new[places] = from_ordered(ordered(new.take(places)) + steps)


def write_gaps(members: Indices, width: int) -> tuple[Bytes, Bytes, int]:
    """Splits all gaps at once."""
    gaps = members.copy()
    gaps[1:] -= members[:-1] + 1
    ends = np.cumsum(gaps >> width) + np.arange(len(gaps))
    unary = np.zeros(ends[-1] + 1, np.bool_)
    unary[ends] = True
    planes = [np.packbits((gaps & (1 << bit)) != 0, bitorder="little") for bit in reversed(range(width))]
    return np.packbits(unary, bitorder="little"), np.concatenate([*planes, np.zeros(0, np.uint8)]), len(unary)


def read_gaps(unary: Bytes, planes: Bytes, count: int, width: int, bits: int) -> tuple[Indices, int]:
    """Adds up the gaps."""
    ends = np.flatnonzero(np.unpackbits(unary, count=bits, bitorder="little"))
    if len(ends) != count:
        return ends, len(ends)
    remainders = np.zeros(count, np.uint32)
    for plane in planes.reshape(width, (count + 7) // 8):
        remainders += remainders
        remainders |= np.unpackbits(plane, count=count, bitorder="little")
    numbers = np.arange(count)
    return ((ends - numbers) << width) + numbers + np.cumsum(remainders, dtype=np.intp), count


def others(members: Indices, size: int) -> Indices:
    """Strikes out the members."""
    kept = np.ones(size, np.bool_)
    kept[members] = False
    return np.flatnonzero(kept)


def magnitudes(bits: Bits) -> Bits:
    """The floats without their signs."""
    return np.bitwise_and(bits, bits.dtype.type((1 << bits.itemsize * 8 - 1) - 1))


def signs(bits: Bits) -> Bits:
    """1 where the highest bit is set."""
    return np.right_shift(bits, bits.dtype.type(bits.itemsize * 8 - 1))


def ordered(bits: Bits) -> Bits:
    """Integers that order like the floats: inverts all bits of a negative float, and the sign bit of any other."""
    turned: Bits = np.negative(signs(bits)) | _top(bits)
    return np.bitwise_xor(bits, turned)


def from_ordered(ordered: Bits) -> Bits:
    """The inverse of `ordered`."""
    turned: Bits = (signs(ordered) - ordered.dtype.type(1)) | _top(ordered)
    return np.bitwise_xor(ordered, turned)


def _top(bits: Bits) -> Any:
    return bits.dtype.type(1 << bits.itemsize * 8 - 1)


def _blocks(bits: Bits) -> Iterator[slice]:
    return (slice(begin, begin + BLOCK) for begin in range(0, len(bits), BLOCK))


def _set_indices(flags: NDArray[np.bool_]) -> Indices:
    """The indices of the true flags, of which most are false: looks for them in words of 64 alone."""
    words = np.zeros(-(-len(flags) // 64), np.uint64)
    packed = np.packbits(flags, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    filled = np.flatnonzero(words)
    bits = np.unpackbits(words.take(filled).view(np.uint8), bitorder="little")
    found = np.flatnonzero(bits.view(np.bool_))
    return (filled.take(found >> 6) << 6) + (found & 63)
