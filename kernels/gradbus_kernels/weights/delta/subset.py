"""Codes a subset of {0 .. size - 1} in nearly as few bits as its entropy: Rice-coded gaps, in planes for numpy.

The gaps between the members of a random subset are geometric, for which Rice codes are within 4 % of the entropy
(Golomb 1966; Rice and Plaunt 1971). The quotients (unary) and each bit of the remainders have separate planes, so no loop over
members is needed. The parameter follows from the two counts and is not stored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, Reader, Writer

Indices = NDArray[np.intp]


def write_subset(out: Writer, members: Indices, size: int) -> None:
    """Writes `members`, which ascend and lie in [0, size)."""
    out.number(len(members))
    if not 0 < len(members) < size:
        return
    sparse = members if 2 * len(members) <= size else _others(members, size)
    width = _rice_width(len(sparse), size)
    gaps = sparse.copy()
    gaps[1:] -= sparse[:-1] + 1
    ends = np.cumsum(gaps >> width) + np.arange(len(gaps))
    unary = np.zeros(ends[-1] + 1, np.bool_)
    unary[ends] = True
    out.number(len(unary) - len(sparse))
    out.bits(unary)
    out.planes(gaps.astype(np.uint32), width)


def read_subset(source: Reader, size: int) -> Indices:
    """The members in order. Raises DamagedDeltaError if they are not a subset of [0, size)."""
    count = source.number(size)
    if not 0 < count < size:
        return np.arange(count)
    dense = 2 * count > size
    sparse = _read_sparse(source, size - count if dense else count, size)
    return _others(sparse, size) if dense else sparse


def _read_sparse(source: Reader, count: int, size: int) -> Indices:
    width = _rice_width(count, size)
    ends = np.flatnonzero(source.bits(count + source.number(size >> width)).view(np.bool_))
    if len(ends) != count:
        raise DamagedDeltaError(f"a list of {count} has {len(ends)} members")
    numbers = np.arange(count)
    members = ((ends - numbers) << width) + numbers + np.cumsum(source.planes(count, width), dtype=np.intp)
    if members[-1] >= size:
        raise DamagedDeltaError(f"position {members[-1]} is named among {size}")
    return members


def _others(members: Indices, size: int) -> Indices:
    kept = np.ones(size, np.bool_)
    kept[members] = False
    return np.flatnonzero(kept)


def _rice_width(count: int, size: int) -> int:
    """The best number of bits for a gap's remainder: 1 + floor(log2(log(golden ratio - 1) / log(1 - count / size))) (Kiely 2004)."""
    return max(0, ((2 * size - count) * 77 // (160 * count)).bit_length() - 1)


def set_bit_indices(words: NDArray[np.uint64]) -> Indices:
    """Indices of the set bits, where bit 0 of word 0 is 0: the lowest of every word, then the second lowest, and so on."""
    filled = np.flatnonzero(words != 0)
    starts, words = filled << 6, words.take(filled)
    parts = []
    while len(words):
        rest = words & (words - np.uint64(1))
        parts.append(starts + np.bitwise_count((words ^ rest) - np.uint64(1)))
        filled = np.flatnonzero(rest != 0)
        starts, words = starts.take(filled), rest.take(filled)
    return np.concatenate(parts) if parts else filled
