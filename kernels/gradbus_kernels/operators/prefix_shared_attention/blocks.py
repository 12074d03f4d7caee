"""Short groups side by side, each padded to a block of L tokens, in which a mask says what each token sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradbus_kernels.operators.base.arguments import require

LONGEST: Final = 96
"""Tokens of a group, a root with its branches, up to which it is short."""
LONGEST_ALONE: Final = 16
"""The same for a root without branches."""
_STEP: Final = 16
"""L is a multiple of it: whole vectors."""
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Block:
    """B groups of at most L tokens. Padding sees itself alone, and no token sees it."""

    length: int
    """L."""
    tokens: Tensor
    """int64 `[B * L]`: the packed token in each place; padding repeats its group's first."""
    places: Tensor
    """int64 `[n]`: the places that are no padding."""
    packed: Tensor
    """int64 `[n]`: the packed tokens in `places`."""
    segments: Numbers
    """`[B, L]`: the segment of each place; padding has negative numbers of its own."""
    roots: Numbers
    """`[B, L]`: the root of a branch's token, -1 elsewhere."""
    positions: Numbers
    """`[B, L]`: of a token in its sequence."""
    _biases: dict[tuple[int | None, torch.dtype, int, int], Tensor] = field(default_factory=dict)

    def bias(self, window: int | None, dtype: torch.dtype, heads: int, key_heads: int) -> Tensor:
        """`[B * K, L, H / K * L]`, by group and key head, key, query: 0 where the query sees the key, else -inf. All layers share it."""
        given = window, dtype, heads, key_heads
        if given not in self._biases:
            back = self.positions[:, None] - self.positions[:, :, None]
            akin = (self.segments[:, None] == self.segments[:, :, None]) | (self.roots[:, None] == self.segments[:, :, None])
            hidden = ~akin | (back < 0) | (back >= (window or self.length))
            bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(torch.from_numpy(hidden), float("-inf"))
            by_head = bias[:, None, :, None].expand(-1, key_heads, -1, heads // key_heads, -1)
            self._biases[given] = by_head.reshape(len(bias) * key_heads, self.length, -1)
        return self._biases[given]

    def gathered(self, heads: Tensor, key_heads: int, dtype: torch.dtype) -> Tensor:
        """`[B * K, H / K * L, D]` in `dtype` from `[N, H, D]`; K is `key_heads`."""
        _, count, size = heads.shape
        rows = heads.index_select(0, self.tokens).to(dtype).view(-1, self.length, key_heads, count // key_heads, size)
        return rows.permute(0, 2, 3, 1, 4).reshape(-1, count // key_heads * self.length, size)

    def scatter(self, rows: Tensor, out: Tensor) -> None:
        """Writes `[B * K, H / K * L, D]` to the block's tokens in `out`, `[N, H, D]`."""
        _, count, size = out.shape
        by_place = rows.view(-1, count, self.length, size).transpose(1, 2).reshape(-1, count, size)
        out.index_copy_(0, self.packed, by_place.index_select(0, self.places).to(out.dtype))


class Segments(NamedTuple):
    """A layout's segments as arrays, int64 each."""

    lengths: Numbers
    roots: Numbers
    """Of branches; -1 for roots."""
    groups: Numbers
    """The root, of a root itself."""
    origins: Numbers
    """The packed token that would have position 0 of the sequence."""

    @classmethod
    def of(cls, offsets: Sequence[int], parents: Sequence[int | None]) -> Segments:
        """From a layout's fields. Raises ValueError unless they are a layout."""
        ends, count = np.array(offsets, dtype=np.int64), len(offsets) - 1
        lengths = ends[1:] - ends[:-1]
        if offsets[:1] != (0,) or (lengths < 0).any():
            raise ValueError(f"offsets: are {offsets}; pass cumulative lengths that begin with 0")
        require(len(parents) == count, "parents", f"are {len(parents)}; pass one for each of {count} segments")
        roots = np.array([-1 if parent is None else parent if parent >= 0 else count for parent in parents], dtype=np.int64)
        is_root = np.append(roots < 0, [False, True])  # by segment; then for parents that are none, and for None
        wrong = np.flatnonzero(~is_root[np.minimum(roots, count)])
        if len(wrong):
            segment = int(wrong[0])
            raise ValueError(f"parents: says {parents[segment]} for segment {segment}; pass the index of a segment without a parent")
        groups = np.where(roots < 0, np.arange(count), roots)
        return cls(lengths, roots, groups, ends[:-1] - np.where(roots < 0, 0, lengths[groups]))


class ShortGroups(NamedTuple):
    """The short groups of a layout."""

    blocks: tuple[Block, ...]
    segments: NDArray[np.bool_]
    """Whether a segment is of one of them."""

    @classmethod
    def of(cls, segments: Segments) -> ShortGroups:
        """A function of the layout alone; no loop over segments."""
        count = len(segments.lengths)
        sizes = np.bincount(segments.groups, segments.lengths, count).astype(np.int64)
        has_branches = np.bincount(segments.groups, minlength=count) > 1
        is_short = (sizes > 0) & (sizes <= np.where(has_branches, LONGEST, LONGEST_ALONE))
        padded = np.where(is_short, -(-sizes // _STEP) * _STEP, 0)
        by_token = np.repeat(np.arange(count), segments.lengths)
        # Groups in turn, each beginning with its root.
        tokens = np.argsort(2 * segments.groups[by_token] + (segments.roots[by_token] >= 0), kind="stable")
        lengths = padded[segments.groups[by_token[tokens]]]
        blocks = [
            _block(int(length), tokens[lengths == length], sizes[padded == length], by_token, segments)
            for length in np.unique(padded[is_short])
        ]
        return cls(tuple(blocks), is_short[segments.groups])


def _block(length: int, tokens: Numbers, sizes: Numbers, by_token: Numbers, all_segments: Segments) -> Block:
    """The block of `tokens`, group by group; `sizes` are the groups' and `by_token` the segments of all packed tokens."""
    starts = np.cumsum(sizes) - sizes
    places = np.arange(len(tokens)) + np.repeat(np.arange(len(sizes)) * length - starts, sizes)
    segments = by_token[tokens]

    def placed(padding: Numbers, values: Numbers) -> Numbers:
        grid = np.broadcast_to(padding, (len(sizes), length)).copy()
        grid.reshape(-1)[places] = values
        return grid

    return Block(
        length,
        torch.from_numpy(placed(tokens[starts][:, None], tokens).reshape(-1)),
        torch.from_numpy(places),
        torch.from_numpy(tokens),
        placed(-2 - np.arange(length), segments),
        placed(np.array(-1), all_segments.roots[segments]),
        placed(np.array(0), tokens - all_segments.origins[segments]),
    )
