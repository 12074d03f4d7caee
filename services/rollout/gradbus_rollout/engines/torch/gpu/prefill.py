"""Prompts into a cache, in chunks of one size that are packed into forwards of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gradbus_rollout.engines.torch.cached.cache import RowCache
from gradbus_rollout.engines.torch.model import DecoderModel

_CHUNK: Final = 128
"""Tokens of a chunk. Chunks begin at its multiples, so a position's chunk depends on the position alone."""
_AT_ONCE: Final = 16
"""Chunks of a forward: of any prompts, also several of one, because each layer stores all keys before it attends."""


class PackedPrefill:
    """A cache of `lanes` prompts, and of a row more for chunks that fill up a forward."""

    def __init__(self, model: DecoderModel, lanes: int, device: str) -> None:
        self._model = model
        self._device = device
        self._last = torch.zeros(lanes, model.config.hidden_size, dtype=model.dtype, device=device)
        self.lanes = lanes
        self.cache: RowCache = model.new_cache(lanes + 1)
        self.computed = 0
        """Chunks begun so far; long prompts have thousands."""

    def run(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Fill the lanes with `prompts`, at most `lanes` of them.

        Returns the logits that follow each prompt, `[lanes, vocab]`; what other lanes get has no meaning.
        """
        chunks = [(lane, start) for lane, prompt in enumerate(prompts) for start in range(0, len(prompt), _CHUNK)]
        fill = -len(chunks) % _AT_ONCE
        self.cache.reserve(max(start for _, start in chunks) + _CHUNK)
        tokens = np.zeros((len(chunks) + fill, _CHUNK), dtype=np.int64)
        ends = []  # of each prompt, the index of its last token among all
        for number, (lane, start) in enumerate(chunks):
            part = prompts[lane][start : start + _CHUNK]
            tokens[number, : len(part)] = part
            if start + len(part) == len(prompts[lane]):
                ends.append(number * _CHUNK + len(part) - 1)
        places = np.array([*chunks, *[(self.lanes, 0)] * fill])
        self._compute(torch.from_numpy(tokens).to(self._device), torch.from_numpy(places).to(self._device), ends)
        return self._model.logits(self._last)

    def _compute(self, tokens: Tensor, places: Tensor, ends: Sequence[int]) -> None:
        """All forwards of `tokens` `[N, chunk]`; `places` are lanes and first positions, `[N, 2]`."""
        positions = places[:, 1:] + torch.arange(_CHUNK, device=self._device)
        lanes, last = torch.arange(len(ends), device=self._device), torch.tensor(ends, device=self._device)
        first = 0
        for begin in range(0, len(tokens), _AT_ONCE):
            forward = slice(begin, begin + _AT_ONCE)
            hidden = self._model.forward(tokens[forward], positions[forward], self.cache.at(places[forward, 0].contiguous()))
            done = first + sum(end < (begin + _AT_ONCE) * _CHUNK for end in ends[first:])
            self._last.index_copy_(0, lanes[first:done], hidden.index_select(0, last[first:done] - begin * _CHUNK))
            self.computed, first = self.computed + _AT_ONCE, done
