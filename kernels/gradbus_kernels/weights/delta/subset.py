"""Codes a subset of {0 .. size - 1} in nearly as few bits as its entropy: Rice-coded gaps, in planes.

The gaps between the members of a random subset are geometric, for which Rice codes are within 4 % of the entropy
(Golomb 1966; Rice and Plaunt 1971). The quotients (unary) and each bit of the remainders, highest first, have separate planes, so
that they can be coded without a loop over members. The parameter follows from the two counts and is not stored.
"""

from __future__ import annotations

import numpy as np

from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, Reader, Writer
from gradbus_kernels.weights.delta.loops import Indices, Loops


def write_subset(out: Writer, members: Indices, size: int, loops: Loops) -> None:
    """Writes `members`, which ascend and lie in [0, size)."""
    out.number(len(members))
    if not 0 < len(members) < size:
        return
    sparse = members if 2 * len(members) <= size else loops.others(members, size)
    unary, planes, bits = loops.write_gaps(sparse, _rice_width(len(sparse), size))
    out.number(bits - len(sparse))
    out.raw(unary.tobytes())
    out.raw(planes.tobytes())


def read_subset(source: Reader, size: int, loops: Loops) -> Indices:
    """The members in order. Raises DamagedDeltaError if they are not a subset of [0, size)."""
    count = source.number(size)
    if not 0 < count < size:
        return np.arange(count)
    dense = 2 * count > size
    sparse = _read_sparse(source, size - count if dense else count, size, loops)
    return loops.others(sparse, size) if dense else sparse


def _read_sparse(source: Reader, count: int, size: int, loops: Loops) -> Indices:
    width = _rice_width(count, size)
    bits = count + source.number(size >> width)
    unary = np.frombuffer(source.raw((bits + 7) // 8), np.uint8)
    planes = np.frombuffer(source.raw(width * ((count + 7) // 8)), np.uint8)
    members, found = loops.read_gaps(unary, planes, count, width, bits)
    if found != count:
        raise DamagedDeltaError(f"a list of {count} has {found} members")
    if members[-1] >= size:
        raise DamagedDeltaError(f"position {members[-1]} is named among {size}")
    return members


def _rice_width(count: int, size: int) -> int:
    """The best number of bits for a gap's remainder: 1 + floor(log2(log(golden ratio - 1) / log(1 - count / size))) (Kiely 2004)."""
    return max(0, ((2 * size - count) * 77 // (160 * count)).bit_length() - 1)
