"""Block sizes and warps of the Triton kernels. Nothing here changes a result beyond the order of its sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ProductTiles:
    """A tile of a product; sizes are powers of two from 16. The same for every number of rows: they decide bits."""

    rows: int
    columns: int
    inner: int
    warps: int


@dataclass(frozen=True, slots=True)
class InvariantAttentionTiles:
    """A tile of scores; sizes are powers of two from 16."""

    queries: int
    keys: int
    warps: int


INVARIANT_MATMUL: Final = ProductTiles(rows=64, columns=128, inner=32, warps=4)
INVARIANT_ATTENTION: Final = InvariantAttentionTiles(queries=64, keys=32, warps=4)
INVARIANT_ROW: Final = 1024
"""Columns of a row that are summed at a time; a power of two."""
