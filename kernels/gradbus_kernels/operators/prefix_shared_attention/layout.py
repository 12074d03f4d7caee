"""The layout of sequences that share prompts in one row of tokens: each prompt once, its responses anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from gradbus_kernels.operators.prefix_shared_attention.blocks import Segments, ShortGroups


class Run(NamedTuple):
    """Neighbouring segments of equal length."""

    first: int
    """The first token of the first segment."""
    segments: int
    length: int


@dataclass(frozen=True)
class PrefixLayout:
    """Segments of N packed tokens. Roots see themselves alone; branches see their root and themselves.

    Segment s holds the tokens [offsets[s], offsets[s + 1]); it may be empty. Raises ValueError unless every parent is a root.
    """

    offsets: tuple[int, ...]
    """Cumulative lengths: 0 first, N last, one more than segments."""
    parents: tuple[int | None, ...]
    """By segment, the index of a branch's root; None for a root."""

    segments: Segments = field(init=False, repr=False, compare=False)
    """The segments as arrays."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", Segments.of(self.offsets, self.parents))

    @classmethod
    def of_lengths(cls, lengths: Iterable[int], parents: Sequence[int | None]) -> PrefixLayout:
        """The layout of segments with these lengths."""
        return cls(tuple(accumulate(lengths, initial=0)), tuple(parents))

    @property
    def tokens(self) -> int:
        """N."""
        return self.offsets[-1]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each segment."""
        return tuple(self.segments.lengths.tolist())

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """By segment, the tokens of its root: the position of its first token in its sequence. 0 for roots."""
        return tuple((np.array(self.offsets[:-1], dtype=np.int64) - self.segments.origins).tolist())

    @cached_property
    def short(self) -> ShortGroups:
        """The groups of few tokens."""
        return ShortGroups.of(self.segments)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Neighbours of equal length; without empty segments and short groups."""
        filled = np.flatnonzero(self.segments.lengths)
        kinds = np.where(self.short.segments, 0, self.segments.lengths)[filled]
        starts = np.flatnonzero(np.diff(kinds, prepend=-1))
        counts = np.diff(starts, append=len(filled))
        return tuple(
            Run(self.offsets[first], count, length)
            for first, count, length in zip(filled[starts].tolist(), counts.tolist(), kinds[starts].tolist(), strict=True)
            if length
        )

    @cached_property
    def has_long_branches(self) -> bool:
        """Whether any prompt is shared by a group that is not short."""
        return bool(((self.segments.roots >= 0) & ~self.short.segments).any())

    def position_ids(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Each token's position in its own sequence, for rotary embedding; int64 `[N]`."""
        return torch.from_numpy(np.arange(self.tokens) - np.repeat(self.segments.origins, self.segments.lengths)).to(device)

    def visible(self, window: int | None = None, device: torch.device | str = "cpu") -> torch.Tensor:
        """Bool `[N, N]`: whether token i sees token j, by the definition. `window`: tokens that a token sees back, itself included."""
        numbers, lengths = np.arange(len(self.parents)), self.segments.lengths
        segment, root = (torch.from_numpy(np.repeat(values, lengths)).to(device) for values in (numbers, self.segments.roots))
        back = self.position_ids(device)[:, None] - self.position_ids(device)[None]
        akin = (segment[:, None] == segment[None]) | (root[:, None] == segment[None])
        return akin & (back >= 0) & (back < (window or self.tokens + 1))


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """Arguments of `prefix_shared_attention` other than tensors."""

    layout: PrefixLayout
    scale: float
    window: int | None = None
    softcap: float | None = None
    """Scores x become softcap · tanh(x / softcap) before the softmax."""
