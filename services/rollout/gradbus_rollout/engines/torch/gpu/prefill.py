"""Prompts into a cache, in chunks of one size that are packed into forwards of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gradbus_rollout.engines.torch.attention import Decoder
from gradbus_rollout.engines.torch.gpu.cache import RowCache
from gradbus_rollout.engines.torch.gpu.graph import Replayed
from gradbus_rollout.engines.torch.prefixes import KeptPrefixes

_CHUNK: Final = 128
"""Tokens of a chunk. Chunks begin at its multiples, so a position's chunk depends on the position alone."""
_AT_ONCE: Final = 16
"""Chunks of a forward: of any prompts, also several of one, because each layer stores all keys before it attends."""


class PackedPrefill:
    """A cache of `lanes` prompts, and of a row more for chunks that fill up a forward."""

    def __init__(self, model: Decoder, lanes: int, device: str, kept: KeptPrefixes | None = None) -> None:
        self._model = model
        self._device = device
        self._kept = kept or KeptPrefixes(0)
        self._last = torch.zeros(lanes, model.config.hidden_size, dtype=model.dtype, device=device)
        self._within = torch.arange(_CHUNK, device=device)
        self._tokens = torch.zeros(_AT_ONCE, _CHUNK, dtype=torch.int64, device=device)
        self._places = torch.zeros(_AT_ONCE, 2, dtype=torch.int64, device=device)
        self.lanes = lanes
        self.cache: RowCache = model.new_cache(lanes + 1)
        self.computed = 0
        """Chunks of prompts begun so far; long ones have thousands."""
        self.replayed = Replayed(self._compute, model, self.cache)

    def run(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Fill the lanes with `prompts`, at most `lanes` of them.

        Returns the logits that follow each prompt, `[lanes, vocab]`; what other lanes get has no meaning.
        """
        spans = [(start, start + _CHUNK) for start in range(0, max(map(len, prompts)), _CHUNK)]
        self.cache.reserve(spans[-1][1])
        held = [self._kept.restore(prompt, spans, lane, self.cache) for lane, prompt in enumerate(prompts)]
        chunks = [(lane, start) for lane, prompt in enumerate(prompts) for start in range(held[lane], len(prompt), _CHUNK)]
        fill = -len(chunks) % _AT_ONCE
        tokens = np.zeros((len(chunks) + fill, _CHUNK), dtype=np.int64)
        ends = []  # of each prompt, the index of its last token among all
        for number, (lane, start) in enumerate(chunks):
            part = prompts[lane][start : start + _CHUNK]
            tokens[number, : len(part)] = part
            if start + len(part) == len(prompts[lane]):
                ends.append(number * _CHUNK + len(part) - 1)
        places = np.array([*chunks, *[(self.lanes, 0)] * fill])
        self._forward(len(chunks), torch.from_numpy(tokens).to(self._device), torch.from_numpy(places).to(self._device), np.array(ends))
        for lane, prompt in enumerate(prompts):
            self._kept.keep(prompt, spans, lane, self.cache)
        return self._model.logits(self._last)

    def _forward(self, count: int, tokens: Tensor, places: Tensor, ends: np.ndarray) -> None:
        """All forwards of `tokens` `[N, chunk]`, of which `count` are of prompts; `places` are lanes and first positions, `[N, 2]`."""
        last, lanes = torch.from_numpy(ends).to(self._device), torch.arange(len(ends), device=self._device)
        for begin in range(0, len(tokens), _AT_ONCE):
            end = begin + _AT_ONCE
            self._tokens.copy_(tokens[begin:end])
            self._places.copy_(places[begin:end])
            hidden = self.replayed()
            done = slice(*np.searchsorted(ends, (begin * _CHUNK, end * _CHUNK)))
            self._last.index_copy_(0, lanes[done], hidden.index_select(0, last[done] - begin * _CHUNK))
            self.computed += min(_AT_ONCE, count - begin)

    def _compute(self) -> Tensor:
        """Hidden states of the chunks in `_tokens` at `_places`."""
        rows, starts = self._places.t().contiguous()
        return self._model.forward(self._tokens, starts[:, None] + self._within, self.cache.at(rows))
