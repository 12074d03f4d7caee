"""The layout of sequences that share prompts in one row of tokens: each prompt once, its responses anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import torch

from gradbus_kernels.operators.base.arguments import require


class Run(NamedTuple):
    """Neighbouring segments of equal length."""

    first: int
    """The first token of the first segment."""
    segments: int
    length: int
    roots: bool


@dataclass(frozen=True)
class PrefixLayout:
    """Segments of N packed tokens. Roots see themselves alone; branches see their root and themselves.

    Segment s holds the tokens [offsets[s], offsets[s + 1]); it may be empty. Raises ValueError unless every parent is a root.
    """

    offsets: tuple[int, ...]
    """Cumulative lengths: 0 first, N last, one more than segments."""
    parents: tuple[int | None, ...]
    """By segment, the index of a branch's root; None for a root."""

    def __post_init__(self) -> None:
        rising = self.offsets[:1] == (0,) and all(first <= last for first, last in pairwise(self.offsets))
        require(rising, "offsets", f"are {self.offsets}; pass cumulative lengths that begin with 0")
        segments = len(self.offsets) - 1
        require(len(self.parents) == segments, "parents", f"are {len(self.parents)}; pass one for each of {segments} segments")
        for segment, parent in enumerate(self.parents):
            is_root = parent is None or (0 <= parent < segments and self.parents[parent] is None)
            require(is_root, "parents", f"says {parent} for segment {segment}; pass the index of a segment without a parent")

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
        return tuple(last - first for first, last in pairwise(self.offsets))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """By segment, the tokens of its root: the position of its first token in its sequence. 0 for roots."""
        return tuple(0 if parent is None else self.lengths[parent] for parent in self.parents)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Neighbours of equal length that are all roots or all branches; without empty segments."""
        found = []
        filled = [segment for segment, length in enumerate(self.lengths) if length]
        for (length, roots), members in groupby(filled, key=lambda segment: (self.lengths[segment], self.parents[segment] is None)):
            segments = list(members)
            found.append(Run(self.offsets[segments[0]], len(segments), length, roots))
        return tuple(found)

    @cached_property
    def has_branches(self) -> bool:
        """Whether any prompt is shared."""
        return any(parent is not None for parent in self.parents)

    def position_ids(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Each token's position in its own sequence, for rotary embedding; int64 `[N]`."""
        shifts = [depth - first for depth, first in zip(self.depths, self.offsets, strict=False)]
        return self._each_token(shifts, device) + torch.arange(self.tokens, device=device)

    def visible(self, window: int | None = None, device: torch.device | str = "cpu") -> torch.Tensor:
        """Bool `[N, N]`: whether token i sees token j, by the definition. `window`: tokens that a token sees back, itself included."""
        segment = self._each_token(range(len(self.parents)), device)
        root = self._each_token([-1 if parent is None else parent for parent in self.parents], device)
        back = self.position_ids(device)[:, None] - self.position_ids(device)[None]
        akin = (segment[:, None] == segment[None]) | (root[:, None] == segment[None])
        return akin & (back >= 0) & (back < (window or self.tokens + 1))

    def _each_token(self, numbers: Iterable[int], device: torch.device | str) -> torch.Tensor:
        """int64 `[N]`: each segment's number, repeated for its tokens."""
        repeats = torch.tensor(self.lengths, dtype=torch.int64)
        return torch.tensor(list(numbers), dtype=torch.int64).repeat_interleave(repeats).to(device)


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """Arguments of `prefix_shared_attention` other than tensors."""

    layout: PrefixLayout
    scale: float
    window: int | None = None
