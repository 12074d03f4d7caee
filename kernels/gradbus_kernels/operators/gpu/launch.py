"""Block sizes and warps of the Triton kernels. Nothing here changes a result beyond the order of its sums."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"
"""Products are of float32 then: the interpreter's of bfloat16 are wrong."""


@dataclass(frozen=True, slots=True)
class RowsOfLogits:
    """A pass over `[N, V]`."""

    slice: int
    """Columns that one program of the forward pass takes, block by block."""
    block: int
    """Columns at a time; a power of two."""
    warps: int


@dataclass(frozen=True, slots=True)
class JoinedRowsOfLogits(RowsOfLogits):
    """The same, and a second kernel that puts the slices together."""

    rows: int
    """Rows that one program of it takes; a power of two."""


SELECTED_LOGPROB: Final = JoinedRowsOfLogits(slice=32_768, block=4_096, warps=8, rows=64)
SAMPLE: Final = RowsOfLogits(slice=16_384, block=4_096, warps=8)


@dataclass(frozen=True, slots=True)
class HeadChunks:
    """How many tokens' logits exist at a time."""

    workspace: int
    """Bytes of logits."""
    tile: int
    """Their number is a multiple of this, if so many fit."""


LINEAR_LOGPROB: Final = HeadChunks(workspace=512 << 20, tile=128)


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """A block of attention scores; both sizes are powers of two from 16."""

    queries: int
    keys: int
    warps: int
    stages: int
    """How many blocks ahead keys are loaded."""


def prefix_shared_attention(head_dim: int, item_size: int) -> AttentionBlocks:
    """By head and bytes of a number: queries, keys, values and sums of a block must fit the shared memory of one core."""
    if item_size > 2 or head_dim > 128:
        return AttentionBlocks(queries=32, keys=32, warps=4, stages=1 if item_size > 2 else 2)
    if head_dim > 64:
        return AttentionBlocks(queries=64, keys=64, warps=4, stages=2)
    return AttentionBlocks(queries=128, keys=64, warps=4, stages=2)


@dataclass(frozen=True, slots=True)
class ProductTiles:
    """A tile of a product; sizes are powers of two from 16. The same for every number of rows: they decide bits."""

    rows: int
    columns: int
    inner: int
    warps: int


INVARIANT_MATMUL: Final = ProductTiles(rows=64, columns=128, inner=32, warps=4)
INVARIANT_ATTENTION: Final = AttentionBlocks(queries=64, keys=32, warps=4, stages=2)
INVARIANT_ROW: Final = 1024
"""Columns of a row that are summed at a time; a power of two."""
