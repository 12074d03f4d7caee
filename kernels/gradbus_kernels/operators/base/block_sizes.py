"""How operators cut their work: tiles on a CPU, block sizes and warps of the Triton kernels.

Nothing here changes a result beyond the order of its sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

ROWS_TILE: Final = 1 << 17
"""Logits in a tile of whole rows on a CPU (a longer row is a tile by itself): copies of a tile stay in a core's L2 cache."""

INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton's interpreter runs the kernels. They then multiply in float32, because its products of bfloat16 are wrong."""


def slices(total: int, size: int) -> Iterator[slice]:
    """0 .. total in slices of `size`, the last one shorter."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


@dataclass(frozen=True, slots=True)
class RowsOfLogits:
    """Launch of a pass over logits `[N, V]`."""

    slice: int
    """Columns that one program of the forward pass takes, block by block."""
    block: int
    """Columns at a time; a power of two."""
    warps: int
    rows: int
    """Rows that one program of the second kernel merges from their slices; a power of two."""


SELECTED_LOGPROB: Final = RowsOfLogits(slice=32_768, block=4_096, warps=8, rows=64)


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Launch of the kernels that sample from rows of logits; sizes are powers of two."""

    slice: int
    """Columns that one program of the first kernel takes."""
    group: int
    """Neighbouring columns that become candidates together."""
    candidates: int
    """Candidate groups of a row. A support that needs more is searched in the whole row."""
    block: int
    """Columns at a time in that search."""
    warps: int


SAMPLE: Final = SampledRows(slice=4_096, group=16, candidates=512, block=8_192, warps=8)


@dataclass(frozen=True, slots=True)
class SampledHead:
    """A tile of the product of a small batch and an LM head; powers of two from 16. The same for every batch, because sizes decide bits."""

    rows: int
    columns: int
    inner_bytes: int
    """Bytes of a row of either factor that are read at a time."""
    warps: int
    stages: int


SAMPLE_LINEAR: Final = SampledHead(rows=64, columns=128, inner_bytes=128, warps=4, stages=3)


@dataclass(frozen=True, slots=True)
class HeadChunks:
    """Tokens whose logits exist at a time."""

    workspace: int
    """Bytes of logits and of their gradient."""
    tile: int
    """Their number is a multiple of this, if at least this many fit."""


LINEAR_LOGPROB: Final = HeadChunks(workspace=2 << 30, tile=128)
"""Each slice of the tokens reads and writes the float32 sum of the weight's gradient once more, so few slices are worth their memory."""


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """A block of attention scores; both sizes are powers of two from 16."""

    queries: int
    keys: int
    warps: int
    stages: int
    """How many blocks ahead keys are loaded."""


class AttentionLaunch(NamedTuple):
    """The three kernels of attention."""

    forward: AttentionBlocks
    backward_query: AttentionBlocks
    backward_key: AttentionBlocks


def prefix_shared_attention(head_dim: int, item_size: int) -> AttentionLaunch:
    """Sizes for a head size and an element size in bytes: a block's queries, keys, values and sums must fit an SM's shared memory.

    Those of 16-bit heads up to 128 are the fastest of a sweep on an H100 among those that fit the 99 KiB of other GPUs.
    """
    if item_size > 2 or head_dim > 128:
        blocks = AttentionBlocks(queries=32, keys=32, warps=4, stages=1 if item_size > 2 else 2)
        return AttentionLaunch(blocks, blocks, blocks)
    if head_dim > 64:
        return AttentionLaunch(
            forward=AttentionBlocks(queries=64, keys=64, warps=4, stages=2),
            backward_query=AttentionBlocks(queries=64, keys=32, warps=4, stages=3),
            backward_key=AttentionBlocks(queries=32, keys=64, warps=4, stages=3),
        )
    return AttentionLaunch(
        forward=AttentionBlocks(queries=64, keys=64, warps=4, stages=3),
        backward_query=AttentionBlocks(queries=64, keys=32, warps=4, stages=3),
        backward_key=AttentionBlocks(queries=64, keys=64, warps=4, stages=2),
    )


ATTENTION_PART: Final = 8192
"""Queries, each counted for each of its heads, over which one program adds up the gradients of a block of keys. It decides bits."""
ATTENTION_PARTS: Final = 256
"""Parts of a key head's sums that a layout has at most, beside those of blocks that begin another one."""


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Columns of a row that one program takes, a power of two."""

    columns: int
    warps: int


GATED: Final = ColumnBlock(columns=1024, warps=4)


@dataclass(frozen=True, slots=True)
class RowTile:
    """Rows and columns that a program takes at a time, powers of two."""

    rows: int
    columns: int
    warps: int
    programs: int = 1
    """At most this many share the rows of a pass that sums over them. It decides bits."""


NORM_SUMS: Final = RowTile(rows=64, columns=32, warps=4)
"""Of the programs' sums, which are added in order."""


def norm_rows(width: int) -> RowTile:
    """Whole rows of this many columns: about 32 elements a thread, and of narrow rows several for each warp."""
    columns = max(16, power_of_two(width))
    warps = min(16, max(4, columns // 1024))
    return RowTile(max(1, 1024 * warps // columns), columns, warps, programs=256)


def rotary_tokens(pairs: int) -> RowTile:
    """Tokens of one head with this many pairs."""
    return RowTile(max(1, 1024 // pairs), pairs, warps=2, programs=64)


def power_of_two(at_least: int) -> int:
    """The least power of two from `at_least` on; triton has such a function too, but is not everywhere."""
    return 1 << (at_least - 1).bit_length()


CACHED_SPLIT: Final = 256
"""Keys of a cache that one program of `cached_attention` takes, where a row has one query. It decides bits."""
CACHED_SPLITS: Final = 16
"""Splits that are joined at a time; a power of two. It decides bits."""
CACHED_HEADS: Final = 16
"""Heads of a token that one program rotates; a power of two."""
CACHED_COPY: Final = 4096
"""Elements of a cache that one program copies; a power of two."""


def cached_attention(head_dim: int, item_size: int, queries: int | None = None) -> AttentionBlocks:
    """Sizes for chunks of queries; or for this number of `queries` that share a key head, where a row has one token."""
    narrow = item_size <= 2 and head_dim <= 128
    if head_dim > 256:
        return AttentionBlocks(queries=16, keys=16, warps=4, stages=1)
    if queries is not None:
        height = next(size for size in (16, 32, 64) if queries <= size or size == 64)
        return AttentionBlocks(queries=height, keys=64 if narrow else 32, warps=4, stages=3 if narrow and head_dim <= 64 else 2)
    if head_dim > 128:
        return AttentionBlocks(queries=32, keys=32, warps=4, stages=1 if item_size > 2 else 2)
    if not narrow:
        return AttentionBlocks(queries=32, keys=64, warps=8, stages=1)
    return AttentionBlocks(queries=128, keys=64, warps=4 if head_dim <= 64 else 8, stages=2)


@dataclass(frozen=True, slots=True)
class ProductTiles:
    """A tile of a product; sizes are powers of two from 16. The same for every number of rows, because sizes decide bits."""

    rows: int
    columns: int
    inner: int
    warps: int


INVARIANT_MATMUL: Final = ProductTiles(rows=64, columns=128, inner=32, warps=4)
INVARIANT_ATTENTION: Final = AttentionBlocks(queries=64, keys=32, warps=4, stages=2)
INVARIANT_ROW: Final = 1024
"""Columns of a row that are summed at a time; a power of two."""


@dataclass(frozen=True, slots=True)
class SummedPositions:
    """Positions of one id that are summed at a time, and columns of one program; powers of two. They decide bits."""

    positions: int
    columns: int


INVARIANT_EMBEDDING: Final = SummedPositions(positions=16, columns=256)
