"""Random numbers as a pure function of (seed, position), without a generator or state."""

from __future__ import annotations

from typing import Final

from torch import Tensor


def _signed(value: int) -> int:
    """A 64-bit pattern as torch's int64, whose products and sums wrap like unsigned ones."""
    return value - (1 << 64) if value >> 63 else value


_GOLDEN: Final = _signed(0x9E3779B97F4A7C15)
_MIX_1: Final = _signed(0xBF58476D1CE4E5B9)
_MIX_2: Final = _signed(0x94D049BB133111EB)
# 52 bits, not 53: then u * total < total in float64 for every total, so a search by cumulative sum always finds an element.
_UNIFORM_BITS: Final = 52


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift of int64 bit patterns (torch's own shift copies the sign)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def counter_uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), float64: number `positions` of the stream `seeds` (both int64, broadcast to the result's shape).

    SplitMix64 (Steele, Lea, Flood 2014) with random access to its stream.
    """
    state = seeds + (positions + 1) * _GOLDEN
    state = (state ^ _shift_right(state, 30)) * _MIX_1
    state = (state ^ _shift_right(state, 27)) * _MIX_2
    state = state ^ _shift_right(state, 31)
    return _shift_right(state, 64 - _UNIFORM_BITS).double() * 2.0**-_UNIFORM_BITS
