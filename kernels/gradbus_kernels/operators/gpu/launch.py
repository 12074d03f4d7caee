"""Block sizes and warps of the Triton kernels. Nothing here changes a result beyond the order of its sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RowsOfLogits:
    """A pass over `[N, V]`."""

    slice: int
    """Columns that one program of the forward pass takes, block by block."""
    block: int
    """Columns at a time; a power of two."""
    warps: int
    rows: int
    """Rows that one program puts together from their slices; a power of two."""


SELECTED_LOGPROB: Final = RowsOfLogits(slice=32_768, block=4_096, warps=8, rows=64)
SAMPLE: Final = RowsOfLogits(slice=16_384, block=4_096, warps=8, rows=1)
