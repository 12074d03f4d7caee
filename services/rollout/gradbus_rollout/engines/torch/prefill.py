"""Prompts into a cache, several at a time, in chunks of fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gradbus_rollout.engines.torch.cache import KvCache
from gradbus_rollout.engines.torch.model import DecoderModel
from gradbus_rollout.engines.torch.prefixes import KeptPrefixes, Span

_CHUNK_ENDS: Final = (8, 16, 32)
_LONGEST_CHUNK: Final = 32


def chunks(length: int) -> Iterator[Span]:
    """(start, end) of the chunks that hold positions 0..length-1: 8, 8, 16, then 32 each.

    A position's chunk depends on the position alone, so a prompt's bits do not depend on longer prompts beside it.
    """
    start = 0
    while start < length:
        end = next((end for end in _CHUNK_ENDS if end > start), start + _LONGEST_CHUNK)
        yield start, end
        start = end


def rounds(needed: Sequence[Sequence[Span]]) -> Iterator[list[Span]]:
    """In which order lanes compute the chunks that they need, one of equal length each at a time.

    A lane that needs none of this length computes its newest one of them again, to the same bits, or its first one, which are positions
    past its prompt's end or before what it needs.
    """
    for first in chunks(_CHUNK_ENDS[-1]):
        if any(first in lane for lane in needed):
            yield [first] * len(needed)
    longest: list[list[Span]] = [[span for span in lane if span[0] >= _CHUNK_ENDS[-1]] for lane in needed]
    idle = (_CHUNK_ENDS[-1], _CHUNK_ENDS[-1] + _LONGEST_CHUNK)
    for at in zip_longest(*longest):
        yield [span or (lane[-1] if lane else idle) for span, lane in zip(at, longest, strict=True)]


class Prefill:
    """A cache of `lanes` prompts. Lanes without a prompt are computed too, so that the shape stays the same."""

    def __init__(self, model: DecoderModel, lanes: int, device: str, kept: KeptPrefixes | None = None) -> None:
        self._model = model
        self._device = device
        self._kept = kept or KeptPrefixes(0)
        self._last = torch.zeros(lanes, model.config.hidden_size, dtype=model.dtype, device=device)
        self.lanes = lanes
        self.cache: KvCache = model.new_cache(lanes)
        self.computed = 0
        """Chunks computed so far; long prompts have thousands."""

    def run(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Fill the lanes with `prompts`, at most `lanes` of them.

        Returns the logits that follow each prompt, `[lanes, vocab]`.
        """
        spans = list(chunks(max(map(len, prompts))))
        self.cache.reserve(spans[-1][1])
        needed: list[list[Span]] = [[] for _ in range(self.lanes)]
        for lane, prompt in enumerate(prompts):
            held = self._kept.restore(prompt, spans, lane, self.cache)
            needed[lane] = [span for span in spans if held <= span[0] < len(prompt)]
        self._compute(prompts, needed, max(spans[-1][1], _CHUNK_ENDS[-1] + _LONGEST_CHUNK))
        for lane, prompt in enumerate(prompts):
            self._kept.keep(prompt, spans, lane, self.cache)
        return self._model.logits(self._last)

    def _compute(self, prompts: Sequence[tuple[int, ...]], needed: Sequence[Sequence[Span]], longest: int) -> None:
        """The chunks that each lane needs, and the hidden states of the prompts' last tokens."""
        tokens = np.zeros((self.lanes, longest), dtype=np.int64)
        last = np.full(self.lanes, -1)
        for lane, prompt in enumerate(prompts):
            tokens[lane, : len(prompt)] = prompt
            last[lane] = len(prompt) - 1
        for of_lanes in rounds(needed):
            starts, size = np.array([start for start, _ in of_lanes]), of_lanes[0][1] - of_lanes[0][0]
            positions = starts[:, None] + np.arange(size)
            chunk = torch.from_numpy(np.take_along_axis(tokens, positions, axis=1))
            hidden = self._model.forward(chunk.to(self._device), torch.from_numpy(positions).to(self._device), self.cache)
            ending = np.flatnonzero((starts <= last) & (last < starts + size))
            self._last[ending] = hidden[ending * size + last[ending] - starts[ending]]
            self.computed += 1
