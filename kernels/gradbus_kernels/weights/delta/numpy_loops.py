"""The loops of the codec in numpy: the reference, and what runs where numba does not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.unsignedinteger[Any]]
Bytes = NDArray[np.uint8]
Indices = NDArray[np.intp]
Cursor = tuple[int, int, int, int]


def compare(old: Bits, new: Bits, limit: int, begin: int, seen: int) -> tuple[Indices, Indices, Bits, Bits, int]:
    """See `Loops`, as for all functions here. Searches the list of all small elements."""
    places = np.flatnonzero(old != new)
    before = old.take(places)
    steps = ordered(new.take(places)) - ordered(before)
    if not limit:
        return places + begin, places[:0], steps, steps[:0], seen
    small = np.flatnonzero(magnitudes(old) < limit)
    chosen = magnitudes(before) < limit
    ranks = np.searchsorted(small, places[chosen]) + seen
    return places[~chosen] + begin, ranks, steps[~chosen], steps[chosen], seen + len(small)


def rebuild(old: Bits, new: Bits, limit: int, places: tuple[Indices, Indices], steps: tuple[Bits, Bits], cursor: Cursor) -> Cursor:
    """Looks up the list of all small elements."""
    begin, large, done, seen = cursor
    small = np.flatnonzero(magnitudes(old) < limit) if limit else np.zeros(0, np.intp)
    end, following = begin + len(old), seen + len(small)
    last, count = int(np.searchsorted(places[0], end)), int(np.searchsorted(places[1], following))
    np.copyto(new, old)
    _patch(new, places[0][large:last] - begin, steps[0][large:last])
    _patch(new, small.take(places[1][done:count] - seen), steps[1][done:count])
    return end, last, count, following


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


def longer(sizes: Bits, level: int) -> tuple[Indices, Bits, Bytes]:
    """The bits after the highest one are those of the fraction of a float."""
    members = np.flatnonzero(sizes >= 1 << level)
    kept = sizes.take(members)
    bits = kept.astype(np.float64).view(np.uint64) >> np.uint64(52 - level) & np.uint64(1)
    return members, kept, np.packbits(bits != 0, bitorder="little")


def lengthen(sizes: Bits, members: Indices, plane: Bytes) -> None:
    """Gathers and scatters."""
    sizes[members] = sizes.take(members) * 2 + np.unpackbits(plane, count=len(members), bitorder="little")


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


def _patch(new: Bits, places: Indices, steps: Bits) -> None:
    new[places] = from_ordered(ordered(new.take(places)) + steps)
