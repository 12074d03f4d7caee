"""Work in pieces, so that what is made on the way stays small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

ROWS_TILE: Final = 1 << 17
"""Logits of whole rows that a CPU works on at a time, if a row is not longer: their copies stay in a core's second cache."""


def slices(total: int, size: int) -> Iterator[slice]:
    """0 .. total in pieces of `size`, the last one shorter."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))
