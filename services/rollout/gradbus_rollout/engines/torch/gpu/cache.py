"""Keys and values of a fixed number of rows, each in one piece, and the turns of their positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Final

import torch
from torch import Tensor

from gradbus.formats.model_config import ModelConfig
from gradbus.formats.rope_config import RopeConfig
from gradbus_kernels.models.rotary import rotation_tables
from gradbus_kernels.operators import LayerCache, copy_rows
from gradbus_kernels.operators.base.block_sizes import power_of_two

_LEAST: Final = 256
"""Positions of the smallest step by which a cache grows."""


def room_for(length: int) -> int:
    """The capacity of a cache for rows of `length`: at most half more, beyond the smallest step, so that it seldom grows."""
    step = max(_LEAST, power_of_two(length) // 4)
    return -(-length // step) * step


class RowCache:
    """`Cache` of `[layers, 2, rows, kv_heads, capacity, head_dim]`: keys, then values."""

    def __init__(self, config: ModelConfig, ropes: Sequence[RopeConfig | None], rows: int, like: Tensor) -> None:
        """`ropes` are the distinct rotary embeddings of the model."""
        self._ropes = ropes
        self._storage = like.new_zeros(config.layers, 2, rows, config.kv_heads, 0, config.head_dim)
        self.rows = torch.arange(rows, device=like.device)
        """The rows of a batch over this cache, int64 `[R]`."""
        self.layers: Sequence[LayerCache] = ()
        self.turns: Sequence[Tensor] = ()
        """For each distinct rotary embedding, float32 `[2, capacity, head_dim]`; see `rotate_and_cache`."""
        self.free_memory: Callable[[], None] = lambda: None
        """Called when there is no memory to grow in: frees what can be done without."""

    @property
    def capacity(self) -> int:
        """Positions that a row has room for."""
        return self._storage.shape[4]

    @property
    def tensors(self) -> list[Tensor]:
        """See `Cache`. They are others once the cache has grown."""
        return [self._storage, *self.turns]

    def at(self, rows: Tensor) -> RowCache:
        """The same memory until the cache grows, for a batch over `rows` int64 `[R]`."""
        part = copy(self)
        part.rows = rows
        return part

    def reserve(self, length: int) -> None:
        """Make room for `length` positions a row. It only ever grows."""
        if length <= self.capacity:
            return
        capacity = room_for(length)
        try:
            grown = _grown(self._storage, self._storage, capacity)
        except torch.OutOfMemoryError:
            grown = None  # the error's traceback holds the old storage until this block ends
        if grown is None:
            # Old and new do not fit side by side, and the old may be most of the memory. Host memory has it meanwhile: slow, and rare.
            self.free_memory()
            kept, self._storage, self.layers = self._storage.cpu(), self._storage[..., :0, :].clone(), ()
            torch.cuda.empty_cache()
            grown = _grown(self._storage, kept, capacity)
        self._storage = grown
        self.layers = [LayerCache(*layer.unbind()) for layer in self._storage]
        self.turns = [rotation_tables(rope, self._storage.shape[5], capacity).to(self._storage.device) for rope in self._ropes]

    def copy_rows(self, rows: Tensor, source: RowCache, source_rows: Tensor, length: int) -> None:
        """See `Cache`."""
        self.reserve(length)
        into, origin = (cache._storage.flatten(0, 1) for cache in (self, source))
        copy_rows(into, rows, origin, source_rows, length)

    def bytes_of(self, length: int) -> int:
        """See `Cache`."""
        layers, both, _, heads, _, size = self._storage.shape
        return layers * both * heads * size * length * self._storage.itemsize

    def read(self, row: int, start: int, end: int) -> Tensor:
        """See `Cache`."""
        return self._storage[:, :, row, :, start:end].clone()

    def put(self, row: int, start: int, entries: Tensor) -> None:
        """See `Cache`."""
        self._storage[:, :, row, :, start : start + entries.shape[3]] = entries


def _grown(like: Tensor, filled: Tensor, capacity: int) -> Tensor:
    """A storage of this capacity where `like` is, with what `filled` has. Raises torch.OutOfMemoryError."""
    grown = like.new_zeros(*like.shape[:4], capacity, like.shape[5])
    for layer, old in zip(grown, filled, strict=True):  # one by one: from host memory they pass through the device whole
        layer[..., : filled.shape[4], :] = old
    return grown
