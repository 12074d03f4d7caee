"""Prompts into a cache, several at a time, in chunks of fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from gradbus_rollout.engines.torch.cache import KvCache
from gradbus_rollout.engines.torch.model import DecoderModel

_CHUNK_ENDS: Final = (8, 16, 32)
_LONGEST_CHUNK: Final = 32


def chunks(length: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the chunks that hold positions 0..length-1: 8, 8, 16, then 32 each.

    A position's chunk depends on the position alone, so a prompt's bits do not depend on longer prompts beside it.
    """
    start = 0
    while start < length:
        end = next((end for end in _CHUNK_ENDS if end > start), start + _LONGEST_CHUNK)
        yield start, end
        start = end


class Prefill:
    """A cache of `lanes` prompts. Lanes without a prompt are computed too, so that the shape stays the same."""

    def __init__(self, model: DecoderModel, lanes: int, device: str) -> None:
        self._model = model
        self._device = device
        self._last = torch.zeros(lanes, model.config.hidden_size, dtype=model.dtype, device=device)
        self.lanes = lanes
        self.cache: KvCache = model.new_cache(lanes)
        self.computed = 0
        """Chunks computed so far; long prompts have thousands."""

    def run(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Fill the lanes with `prompts`, at most `lanes` of them.

        Returns the logits that follow each prompt, `[lanes, vocab]`.
        """
        last = np.array([len(prompt) - 1 for prompt in prompts])
        spans = list(chunks(int(last.max()) + 1))
        tokens = np.zeros((self.lanes, spans[-1][1]), dtype=np.int64)
        for lane, prompt in enumerate(prompts):
            tokens[lane, : len(prompt)] = prompt
        for start, end in spans:
            positions = torch.arange(start, end).expand(self.lanes, end - start).contiguous()
            chunk = torch.from_numpy(tokens[:, start:end]).contiguous()
            hidden = self._model.forward(chunk.to(self._device), positions.to(self._device), self.cache)
            ending = np.flatnonzero((start <= last) & (last < end))
            self._last[ending] = hidden[ending * (end - start) + last[ending] - start]
            self.computed += 1
        return self._model.logits(self._last)
