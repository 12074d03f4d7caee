"""Keys and values of a fixed number of rows, read in pages.

The pages of a row have fixed lengths. Attention visits as many as the longest row needs, each in a product of
one fixed shape, and a page that lies wholly past a row's end adds exactly nothing to it. So the length of the
longest neighbour, or of the cache, never changes a row's bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.operators.batch_invariant.attention import pages

_COPIED_ELEMENTS: Final = 1 << 24
"""Of prompts that are copied at a time, so that a copy of all of them is never in memory."""


class KvCache:
    """`[layers, 2, rows, kv_heads, capacity, head_dim]`: keys, then values.

    Heads come before positions, so a page is a batch of matrices without a copy.
    """

    def __init__(self, config: ModelConfig, rows: int, like: Tensor) -> None:
        self._storage = like.new_zeros(config.layers, 2, rows, config.kv_heads, 0, config.head_dim)
        self._layers: Sequence[Tensor] = ()
        self._pages: Sequence[Sequence[tuple[Tensor, Tensor]]] = ()  # all pages of each layer
        matrices = torch.arange(2 * rows * config.kv_heads, device=like.device)
        self._matrices = matrices.view(2, rows, config.kv_heads).transpose(0, 1).reshape(rows, 1, -1)
        self._starts = self._matrices

    @property
    def capacity(self) -> int:
        """Positions that a row has room for."""
        return self._storage.shape[4]

    def reserve(self, length: int) -> None:
        """Make room for `length` positions a row. It only ever grows."""
        if length <= self.capacity:
            return
        spans = pages(length)
        end = spans[-1][1]
        grown = self._storage.new_zeros(*self._storage.shape[:4], end, self._storage.shape[5])
        grown[..., : self.capacity, :] = self._storage
        self._storage = grown
        # Views are made once: they cost as much as small products.
        self._layers = grown.flatten(1, 4).unbind()
        self._starts = self._matrices * end
        matrices = grown.flatten(2, 3).unbind()
        self._pages = [[(keys[:, start:end].transpose(1, 2), values[:, start:end]) for start, end in spans] for keys, values in matrices]

    def indexes(self, positions: Tensor) -> Tensor:
        """Indexes for `write` of the entries at `positions` `[rows, C]`: `[rows * C * 2 * kv_heads]`."""
        return (self._starts + positions.unsqueeze(-1)).reshape(-1)

    def write(self, layer: int, indexes: Tensor, entries: Tensor) -> None:
        """Put `entries` `[rows * C, kv_width]` (all keys, then all values) at `indexes`."""
        self._layers[layer].index_copy_(0, indexes, entries.reshape(-1, self._storage.shape[5]))

    def pages(self, spans: Sequence[tuple[int, int]]) -> list[Sequence[tuple[Tensor, Tensor]]]:
        """The pages at `spans` of each layer: keys `[rows * kv_heads, head_dim, end - start]`, and values, not transposed."""
        return [layer[: len(spans)] for layer in self._pages]

    def copy_rows(self, rows: Tensor, source: KvCache, source_rows: Tensor, length: int) -> None:
        """Copy the first `length` positions of another cache's rows into `rows` of this one."""
        self.reserve(length)
        layers, _, _, heads, _, size = self._storage.shape
        at_once = max(1, _COPIED_ELEMENTS // (2 * layers * heads * size * length))
        for to, origin in zip(torch.split(rows, at_once), torch.split(source_rows, at_once), strict=True):
            self._storage[:, :, to, :, :length] = source._storage[:, :, origin, :, :length]
