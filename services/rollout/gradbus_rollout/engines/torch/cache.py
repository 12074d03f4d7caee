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
    """For each layer its pages in turn, each `[2, rows, kv_heads, length of the page, head_dim]`: keys, then values.

    A page is contiguous: torch copies other batches of matrices before it multiplies them in bfloat16.
    """

    def __init__(self, config: ModelConfig, rows: int, like: Tensor) -> None:
        self._block = (2, rows, config.kv_heads)
        self._storage = like.new_zeros(config.layers, 0, config.head_dim)
        self._spans: Sequence[tuple[int, int]] = ()
        self._layers: Sequence[Tensor] = ()
        self._pages: Sequence[Sequence[tuple[Tensor, Tensor]]] = ()  # all pages of each layer
        matrices = torch.arange(2 * rows * config.kv_heads, device=like.device)
        self._matrices = matrices.view(2, rows, config.kv_heads).transpose(0, 1).reshape(rows, 1, -1)
        self._places = matrices[:0]  # [capacity, 2], by position: its index in the first matrix, and the length of its page

    @property
    def tensors(self) -> list[Tensor]:
        """See `Cache`."""
        return [self._storage]

    @property
    def capacity(self) -> int:
        """Positions that a row has room for."""
        return self._spans[-1][1] if self._spans else 0

    def reserve(self, length: int) -> None:
        """Make room for `length` positions a row. It only ever grows."""
        if length <= self.capacity:
            return
        spans, count = pages(length), self._matrices.numel()
        layers, filled, size = self._storage.shape
        grown = self._storage.new_zeros(layers, count * spans[-1][1], size)
        grown[:, :filled] = self._storage
        self._storage, self._spans = grown, spans
        # Views are made once: they cost as much as small products.
        self._layers = grown.unbind()
        self._pages = [[self._page(layer, span) for span in spans] for layer in self._layers]
        ends = torch.tensor([(end - start, count * start - start) for start, end in spans], device=grown.device)
        lengths, before = ends.repeat_interleave(ends[:, 0], dim=0).unbind(1)
        self._places = torch.stack((before + torch.arange(len(before), device=grown.device), lengths), dim=1)

    def indexes(self, positions: Tensor) -> Tensor:
        """Indexes for `write` of the entries at `positions` `[rows, C]`: `[rows * C * 2 * kv_heads]`."""
        places = self._places.index_select(0, positions.view(-1)).view(*positions.shape, 2)
        firsts, lengths = places.chunk(2, dim=-1)
        return torch.addcmul(firsts, self._matrices, lengths).reshape(-1)

    def write(self, layer: int, indexes: Tensor, entries: Tensor) -> None:
        """Put `entries` `[rows * C * 2 * kv_heads, head_dim]` (of each token all keys, then all values) at `indexes`."""
        self._layers[layer].index_copy_(0, indexes, entries)

    def pages(self, spans: Sequence[tuple[int, int]]) -> list[Sequence[tuple[Tensor, Tensor]]]:
        """The pages at `spans` of each layer: keys `[rows * kv_heads, head_dim, end - start]`, and values, not transposed."""
        return [layer[: len(spans)] for layer in self._pages]

    def copy_rows(self, rows: Tensor, source: KvCache, source_rows: Tensor, length: int) -> None:
        """Copy the first `length` positions of another cache's rows into `rows` of this one."""
        self.reserve(length)
        at_once = max(1, _COPIED_ELEMENTS // (2 * self._storage.shape[0] * self._block[2] * self._storage.shape[2] * length))
        for to, origin in zip(torch.split(rows, at_once), torch.split(source_rows, at_once), strict=True):
            for start, end in pages(length):
                count = min(end, length) - start
                copied = source._of_page((start, end))[..., :count, :].index_select(2, origin)
                self._of_page((start, end))[..., :count, :].index_copy_(2, to, copied)

    def bytes_of(self, length: int) -> int:
        """See `Cache`."""
        layers, _, size = self._storage.shape
        return layers * self._block[0] * self._block[2] * size * length * self._storage.itemsize

    def read(self, row: int, start: int, end: int) -> Tensor:
        """See `Cache`. A chunk lies in one page."""
        return self._entries(row, start, end).clone()

    def put(self, row: int, start: int, entries: Tensor) -> None:
        """See `Cache`."""
        self._entries(row, start, start + entries.shape[3]).copy_(entries)

    def _entries(self, row: int, start: int, end: int) -> Tensor:
        """Those of a row, in one page: `[layers, 2, kv_heads, end - start, head_dim]`."""
        page = pages(end)[-1]
        return self._of_page(page)[:, :, row, :, start - page[0] : end - page[0]]

    def _of_page(self, span: tuple[int, int]) -> Tensor:
        """A page of all layers, `[layers, 2, rows, kv_heads, length, head_dim]`."""
        start, end = (self._matrices.numel() * at for at in span)
        return self._storage[:, start:end].view(len(self._storage), *self._block, -1, self._storage.shape[2])

    def _page(self, layer: Tensor, span: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """A page of one layer, as `pages` gives it."""
        start, end = (self._matrices.numel() * at for at in span)
        keys, values = layer[start:end].view(2, -1, span[1] - span[0], layer.shape[1])
        return keys.transpose(1, 2), values
