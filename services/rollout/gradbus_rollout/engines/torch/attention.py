"""The seam between a decoder's products and its attention; and attention over pages, for a CPU and any other device of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor

from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.models.rotary import rotation_rows
from gradbus_kernels.operators.batch_invariant.attention import MASKED, biases_of, pages
from gradbus_kernels.operators.batch_invariant.matmul import WIDTH
from gradbus_rollout.engines.torch.arithmetic import Arithmetic, Pages, attend_capped, visibility_biases
from gradbus_rollout.engines.torch.buffers import Buffers
from gradbus_rollout.engines.torch.cache import KvCache
from gradbus_rollout.engines.torch.family_parts import FamilyParts
from gradbus_rollout.engines.torch.weights import LayerWeights


class Cache(Protocol):
    """Keys and values of a fixed number of rows. It only ever grows."""

    @property
    def tensors(self) -> list[Tensor]:
        """All of its memory."""
        ...

    def reserve(self, length: int) -> None:
        """Make room for `length` positions a row."""
        ...

    def copy_rows(self, rows: Tensor, source: Self, source_rows: Tensor, length: int) -> None:
        """Copy the first `length` positions of another cache's rows into `rows` of this one."""
        ...

    def bytes_of(self, length: int) -> int:
        """Of a row's entries at `length` positions."""
        ...

    def read(self, row: int, start: int, end: int) -> Tensor:
        """A copy of a row's entries from `start` to `end`, a chunk's: `[layers, 2, kv_heads, end - start, head_dim]`, keys, then values."""
        ...

    def put(self, row: int, start: int, entries: Tensor) -> None:
        """Put what `read` gave into a row from `start` on, for which there is room."""
        ...


class Decoder(Protocol):
    """A model for those that feed it tokens; see `DecoderModel`."""

    @property
    def config(self) -> ModelConfig:
        """Its sizes and settings."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, cache and hidden states."""
        ...

    def new_cache(self, rows: int) -> Any:
        """An empty `Cache` for `rows` sequences."""
        ...

    def forward(self, tokens: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Hidden states `[R * C, hidden]` of `tokens` int64 `[R, C]` at `positions` int64 `[R, C]` of the cache's rows."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, vocab]` from hidden states `[N, hidden]`."""
        ...


class Batch(Protocol):
    """What the layers of one forward of R rows of C tokens share."""

    @property
    def qkv(self) -> Tensor:
        """Room for queries, keys and values, `[R * C, (heads + 2 * kv_heads) * head_dim]`."""
        ...

    @property
    def gate_up(self) -> Tensor:
        """Room for gates and ups, `[R * C, 2 * intermediate_size]`."""
        ...

    def attend(self, number: int, layer: LayerWeights) -> Tensor:
        """Attention of what `qkv` holds, `[R * C, heads * head_dim]`; the new keys and values go into the layer's cache first."""
        ...

    def gated(self, gate_up: Tensor) -> Tensor:
        """The gated linear unit of a tensor like `gate_up`, `[R * C, intermediate_size]`."""
        ...


class Attention(Protocol):
    """Makes caches, and batches over them."""

    def new_cache(self, rows: int) -> Any:
        """An empty `Cache` for `rows` sequences."""
        ...

    def batch(self, positions: Tensor, cache: Any) -> Batch:
        """One of tokens at `positions` int64 `[R, C]` of the rows of one of its caches."""
        ...

    def drop_buffers(self) -> None:
        """Frees what the next batch makes again."""
        ...


class PagedAttention:
    """`Attention` in torch's products, over as many pages of a `KvCache` as the longest row needs."""

    def __init__(self, config: ModelConfig, parts: FamilyParts, arithmetic: Arithmetic, like: Tensor) -> None:
        self._config = config
        self.parts = parts
        self._arithmetic = arithmetic
        self._like = like
        self._tables = self._empty_tables()
        self._buffers: dict[torch.Size, Buffers] = {}
        softcap = config.multipliers.scores_softcap
        self._attend_pages = partial(attend_capped, softcap) if softcap else arithmetic.attend
        self.norm_heads = self._normed_heads if config.norms.qk else _nothing
        self.attend = self._attend_with_sinks if config.family.has_sinks else self._attend_without_sinks

    def new_cache(self, rows: int) -> KvCache:
        """See `Attention`."""
        return KvCache(self._config, rows, self._like)

    def drop_buffers(self) -> None:
        """See `Attention`."""
        self._buffers.clear()
        self._tables = self._empty_tables()

    def batch(self, positions: Tensor, cache: KvCache) -> Batch:
        """See `Attention`."""
        longest = int(positions.max()) + 1
        cache.reserve(longest)
        self._reserve_tables(cache.capacity)
        spans = pages(longest)
        buffers = self._buffers_for(positions.shape)
        batch = _PagedBatch(self, buffers, cache, cache.indexes(positions), cache.pages(spans), self._biases(positions, spans))
        for table, rotation in zip(self._tables, buffers.rotations, strict=True):
            torch.index_select(table, 0, positions.view(-1), out=rotation)
        return batch

    def _biases(self, positions: Tensor, spans: Sequence[tuple[int, int]]) -> list[list[Tensor]]:
        """For each distinct window, biases of the queries, in the layout of `Buffers.queries`."""
        (rows, count), key, shared = positions.shape, self._config.kv_heads, self._config.heads // self._config.kv_heads
        width = self._arithmetic.width(count * shared, self._config.head_dim, spans, self._like.dtype)
        if count == 1 and width == shared:
            of_rows = [biases_of(positions.view(-1), spans, key * shared, window) for window in self.parts.windows]
            return [[bias.view(rows * key, shared, -1) for bias in biases] for biases in of_rows]
        seen = positions.view(rows, 1, count, 1).expand(-1, key, -1, shared).reshape(rows * key, -1)
        return [visibility_biases(seen, spans, width, window) for window in self.parts.windows]

    def _attend_without_sinks(self, layer: LayerWeights, queries: Tensor, pages: Pages, biases: Sequence[Tensor]) -> Tensor:  # noqa: ARG002
        return self._attend_pages(queries, pages, biases, self.parts.scale)

    def _attend_with_sinks(self, layer: LayerWeights, queries: Tensor, pages: Pages, biases: Sequence[Tensor]) -> Tensor:
        """A sink is the first key of a page before the others: its key is zero, its bias the logit, and its value zero."""
        keys, values = queries.new_zeros(len(queries), queries.shape[2], WIDTH), queries.new_zeros(len(queries), WIDTH, queries.shape[2])
        of_head = cast("Tensor", layer.sinks).float().view(self._config.kv_heads, 1, -1)
        bias = torch.full((*queries.shape[:2], WIDTH), MASKED, device=queries.device)
        bias.view(-1, self._config.kv_heads, queries.shape[1] // of_head.shape[2], of_head.shape[2], WIDTH)[..., 0] = of_head
        return self._attend_pages(queries, [(keys, values), *pages], [bias, *biases], self.parts.scale)

    def _normed_heads(self, layer: LayerWeights, buffers: Buffers) -> None:
        """Normalise the queries and keys in `buffers.qkv`."""
        for rows, weight in zip(buffers.normed, layer.qk_norms, strict=True):
            rows.copy_(self.parts.norm(rows, weight))

    def _buffers_for(self, batch: torch.Size) -> Buffers:
        found = self._buffers.get(batch)
        if found is None:
            found = self._buffers[batch] = Buffers(self._config, batch, self._like)
        return found

    def _empty_tables(self) -> list[Tensor]:
        """Rotary tables of no positions."""
        width = (self._config.heads + self._config.kv_heads) * self._config.head_dim
        return [self._like.new_empty(0, width) for _ in self.parts.ropes]

    def _reserve_tables(self, length: int) -> None:
        if length > self._tables[0].shape[0]:
            # Whole rows multiply several times faster on a CPU than head by head.
            self._tables = [rotation_rows(rope, self._config, length).to(self._like.device) for rope in self.parts.ropes]


def _nothing(layer: LayerWeights, buffers: Buffers) -> None:
    """Queries and keys are not normalised."""


@dataclass(eq=False, slots=True)
class _PagedBatch:
    """`Batch` over pages."""

    attention: PagedAttention
    buffers: Buffers
    cache: KvCache
    indexes: Tensor
    pages: Sequence[Pages]
    """Of each layer."""
    biases: Sequence[Sequence[Tensor]]
    """For each distinct window, those of the pages."""

    @property
    def qkv(self) -> Tensor:
        """See `Batch`."""
        return self.buffers.qkv

    @property
    def gate_up(self) -> Tensor:
        """See `Batch`."""
        return self.buffers.gate_up

    def attend(self, number: int, layer: LayerWeights) -> Tensor:
        """See `Batch`."""
        attention, buffers, parts = self.attention, self.buffers, self.attention.parts
        attention.norm_heads(layer, buffers)
        buffers.rotate(parts.rope_of_layer[number])
        self.cache.write(number, self.indexes, buffers.entries())
        biases = self.biases[parts.window_of_layer[number]]
        return buffers.by_token(attention.attend(layer, buffers.queries(), self.pages[number], biases))

    def gated(self, gate_up: Tensor) -> Tensor:
        """See `Batch`."""
        return self.attention.parts.gated(*self.buffers.halves(gate_up))
