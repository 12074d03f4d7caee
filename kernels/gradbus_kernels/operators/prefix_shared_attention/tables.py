"""What each program of the attention kernels computes: blocks of queries or keys, and for each the ranges of tokens that it runs over.

A range is full, if all of its tokens and all of the block see each other and it is a whole number of the other side's blocks; the kernels
then need no mask. The rest is masked. The tables are a function of the layout alone; blocks with most work come first, so that the last
ones to run are short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import ATTENTION_PART, ATTENTION_PARTS, AttentionBlocks
from gradbus_kernels.operators.prefix_shared_attention.layout import PrefixLayout


class Range(NamedTuple):
    """Neighbouring tokens."""

    begin: int
    end: int
    origin: int
    """The packed token that would have position 0 of their sequence; where the mask hides nothing but the end, any that is low enough."""


class _Ranges(NamedTuple):
    full: Sequence[Range]
    masked: Sequence[Range]

    @property
    def tokens(self) -> int:
        return sum(part.end - part.begin for part in (*self.full, *self.masked))


class QueryTables(NamedTuple):
    """Int32, on the device."""

    blocks: Tensor
    """`[blocks, 6]`: the first query, its segment's last + 1, the first's position; the first full range, the first masked one, the end."""
    ranges: Tensor
    """`[ranges, 3]`: of keys, see `Range`."""


class KeyTables(NamedTuple):
    """Int32, on the device."""

    blocks: Tensor
    """`[parts of blocks, 9]`: the first key, its segment's last + 1 and first; the first full range, the first masked, the end; the first
    query head of those of the key head, the last + 1; where the part's sum is stored, -1 for a block of one part."""
    ranges: Tensor
    """`[ranges, 3]`: of queries."""
    sums: Tensor
    """`[blocks of several parts, 4]`: the first key, its segment's last + 1; its parts' first sum, the last + 1."""
    parts: int
    """Sums of parts."""


@lru_cache(maxsize=64)
def query_tables(layout: PrefixLayout, blocks: AttentionBlocks, window: int | None, device: torch.device) -> QueryTables:
    """The ranges of keys that each block of queries sees: in its root, then in its own segment."""
    found = [
        ((first, end, depth + first - begin), _keys_of(first, (begin, end), root, blocks, window))
        for begin, end, root, depth in _segments(layout)
        for first in range(begin, end, blocks.queries)
    ]
    found.sort(key=lambda block: -block[1].tokens)
    ranges: list[Range] = []
    rows = [(*block, *_append(ranges, seen)) for block, seen in found]
    return QueryTables(*_on_device([(rows, 6), (ranges, 3)], device))


@lru_cache(maxsize=64)
def key_tables(layout: PrefixLayout, blocks: AttentionBlocks, group: int, window: int | None, device: torch.device) -> KeyTables:
    """The ranges of queries that see each block of keys: of its own segment, then of its branches. `group`: query heads of a key head.

    A block with many queries is divided into parts of some heads or some queries, whose sums are added later. The longer the sequences, the
    larger the parts, so that the sums of parts take no more memory.
    """
    of_root: dict[int, list[tuple[int, int]]] = {}
    for segment, parent in enumerate(layout.parents):
        if parent is not None:
            of_root.setdefault(parent, []).append((layout.offsets[segment], layout.offsets[segment + 1]))
    seen = [
        ((first, end, begin), _queries_of(first, (begin, end), of_root.get(segment, []), blocks, window))
        for segment, (begin, end, _, _) in enumerate(_segments(layout))
        for first in range(begin, end, blocks.keys)
    ]
    size = max(ATTENTION_PART, group * sum(queries.tokens for _, queries in seen) // ATTENTION_PARTS)
    found: list[tuple[tuple[int, ...], _Ranges, tuple[int, int, int]]] = []
    sums: list[tuple[int, ...]] = []
    parts = 0
    for block, all_queries in seen:
        pieces = list(_pieces(all_queries, blocks, group, size))
        known, several = parts, len(pieces) > 1
        for queries, heads in pieces:
            found.append((block, queries, (*heads, parts if several else -1)))
            parts += several
        if several:
            sums.append((*block[:2], known, parts))
    found.sort(key=lambda part: -part[1].tokens * (part[2][1] - part[2][0]))
    ranges: list[Range] = []
    rows = [(*block, *_append(ranges, queries), *how) for block, queries, how in found]
    blocks_of, ranges_of, sums_of = _on_device([(rows, 9), (ranges, 3), (sums, 4)], device)
    return KeyTables(blocks_of, ranges_of, sums_of, parts)


def _segments(layout: PrefixLayout) -> Iterator[tuple[int, int, tuple[int, int], int]]:
    """Of each segment its range, that of its root (empty for a root) and the root's length."""
    for segment, parent in enumerate(layout.parents):
        begin, end = layout.offsets[segment : segment + 2]
        root = (begin, begin) if parent is None else (layout.offsets[parent], layout.offsets[parent + 1])
        yield begin, end, root, root[1] - root[0]


def _keys_of(first: int, segment: tuple[int, int], root: tuple[int, int], blocks: AttentionBlocks, window: int | None) -> _Ranges:
    begin, last, depth = segment[0], min(first + blocks.queries, segment[1]), root[1] - root[0]
    if window is not None and depth + last - begin > window:
        nearest = depth + first - begin - window + 1  # the position of the first key that any of the queries sees
        ranges = Range(root[0] + max(nearest, 0), root[1], root[0]), Range(begin + max(nearest - depth, 0), last, begin - depth)
        return _Ranges([], [part for part in ranges if part.begin < part.end])
    return _joined(_cut(Range(*root, root[0]), root[1], blocks.keys), _cut(Range(begin, last, begin - depth), first, blocks.keys))


def _queries_of(
    first: int, segment: tuple[int, int], branches: Sequence[tuple[int, int]], blocks: AttentionBlocks, window: int | None
) -> _Ranges:
    begin, end = segment
    depth, last = end - begin, min(first + blocks.keys, end)
    farthest = depth + max((closes - opens for opens, closes in branches), default=0)  # the last query's position + 1
    if window is not None and farthest - (first - begin) > window:
        reach = last - begin + window - 1  # the last position that sees any of the keys, + 1
        ranges = [Range(first, min(end, begin + reach), begin)]
        ranges += [Range(opens, min(closes, opens - depth + reach), opens - depth) for opens, closes in branches]
        return _Ranges([], [part for part in ranges if part.begin < part.end])
    diagonal = min(end, first + -(-blocks.keys // blocks.queries) * blocks.queries)
    # Each branch has positions of its own, by which a window would hide what is merged.
    runs = [Range(opens, closes, opens - depth) for opens, closes in (_merged(branches) if window is None else branches)]
    below = [_cut(run, run.end, blocks.queries) for run in (Range(diagonal, end, begin), *runs)]
    return _joined(_Ranges([], [Range(first, diagonal, begin)]), *below)


def _merged(branches: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours as one: what all of their queries see is the same."""
    found: list[tuple[int, int]] = []
    for begin, end in branches:
        if found and found[-1][1] == begin:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found


def _cut(part: Range, full_end: int, size: int) -> _Ranges:
    """The whole blocks of a range before `full_end`, and the rest of the range, masked."""
    middle = part.begin + (full_end - part.begin) // size * size
    full, masked = Range(part.begin, middle, part.origin), Range(middle, part.end, part.origin)
    return _Ranges([full] if part.begin < middle else [], [masked] if middle < part.end else [])


def _joined(*ranges: _Ranges) -> _Ranges:
    return _Ranges([part for one in ranges for part in one.full], [part for one in ranges for part in one.masked])


def _pieces(queries: _Ranges, blocks: AttentionBlocks, group: int, part_size: int) -> Iterator[tuple[_Ranges, tuple[int, int]]]:
    """Queries, and the range of heads, of about `part_size` queries or of a single range."""
    size = max(1, part_size // blocks.queries) * blocks.queries
    short = [Range(start, min(start + size, part.end), part.origin) for part in queries.full for start in range(part.begin, part.end, size)]
    chunks: list[_Ranges] = [_Ranges([], queries.masked)]
    for part in short:
        if chunks[-1].tokens and chunks[-1].tokens + part.end - part.begin > size:
            chunks.append(_Ranges([], []))
        chunks[-1] = _Ranges([*chunks[-1].full, part], chunks[-1].masked)
    heads = max(1, min(group, part_size // max(chunk.tokens for chunk in chunks)))
    for chunk in chunks:
        yield from ((chunk, (head, min(head + heads, group))) for head in range(0, group, heads))


def _append(ranges: list[Range], seen: _Ranges) -> tuple[int, int, int]:
    """Adds the ranges; the numbers of the first full one, the first masked one and the end."""
    first = len(ranges)
    ranges += [*seen.full, *seen.masked]
    return first, first + len(seen.full), len(ranges)


def _on_device(tables: Sequence[tuple[Sequence[tuple[int, ...]], int]], device: torch.device) -> list[Tensor]:
    """Tables of so many columns, by one copy to the device."""
    whole = torch.tensor([number for rows, _ in tables for row in rows for number in row], dtype=torch.int32).to(device)
    parts = whole.split_with_sizes([len(rows) * columns for rows, columns in tables])
    return [part.view(-1, columns) for part, (_, columns) in zip(parts, tables, strict=True)]
