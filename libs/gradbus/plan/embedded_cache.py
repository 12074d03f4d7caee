"""Positions of the embedded engine's caches of keys and values: `KvCache` on a CPU, in pages, and `RowCache` on a GPU."""

from __future__ import annotations

from typing import Final

_PAGE_ENDS: Final = (32, 64, 128, 256)
_LONGEST_PAGE: Final = 256
_LEAST_STEP: Final = 256
KEPT_BETWEEN_TURNS: Final = 256 << 20
"""Bytes: the default of `GRADBUS_KEPT_PREFIX_MIB`."""


def paged(length: int) -> int:
    """Positions of the pages that hold `length`; each sample's attention reads those of the longest one."""
    return next((end for end in _PAGE_ENDS if end >= length), -(-length // _LONGEST_PAGE) * _LONGEST_PAGE)


def before(capacity: int) -> int:
    """Positions of a cache of pages before it grew to this many: both are there while it grows."""
    return next((end for end in reversed(_PAGE_ENDS) if end < capacity <= _PAGE_ENDS[-1]), max(0, capacity - _LONGEST_PAGE))


def in_one_piece(length: int) -> int:
    """Positions of a GPU's cache of samples of `length`."""
    step = max(_LEAST_STEP, (1 << (length - 1).bit_length()) // 4)
    return -(-length // step) * step


def lanes(slots: int) -> int:
    """Prompts that are computed side by side, and kept until their samples have their slots."""
    return max(4, min(32, slots // 4))
