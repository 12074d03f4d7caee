"""`Attention` by `rotate_and_cache` and `cached_attention`, which read positions on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.operators import CachedRule, HeadNorms, Places, cached_attention, rotate_and_cache
from gradbus_rollout.engines.torch.attention import Batch
from gradbus_rollout.engines.torch.family_parts import FamilyParts
from gradbus_rollout.engines.torch.gpu.cache import RowCache
from gradbus_rollout.engines.torch.weights import LayerWeights


class CachedAttention:
    """`Attention` over a `RowCache`. Nothing here waits for the device."""

    def __init__(self, config: ModelConfig, parts: FamilyParts, like: Tensor) -> None:
        self._config = config
        self._like = like
        self.parts = parts
        softcap = config.multipliers.scores_softcap or None
        self.rules = [CachedRule(parts.scale, window, softcap) for window in config.windows]
        """Of each layer."""

    def new_cache(self, rows: int) -> RowCache:
        """See `Attention`."""
        return RowCache(self._config, self.parts.ropes, rows, self._like)

    def drop_buffers(self) -> None:
        """See `Attention`. There are none: the allocator has what the next batch needs."""

    def batch(self, positions: Tensor, cache: RowCache) -> Batch:
        """See `Attention`."""
        tokens, config = positions.numel(), self._config
        qkv = self._like.new_empty(tokens, config.heads * config.head_dim + config.kv_width)
        gate_up = self._like.new_empty(tokens, 2 * config.intermediate_size)
        return _CachedBatch(self, cache, Places(positions[:, 0].contiguous(), cache.rows), qkv, gate_up)

    def head_norms(self, layer: LayerWeights) -> HeadNorms | None:
        """Those that are of each head by itself."""
        if self._config.norms.qk != "head":
            return None
        query, key = layer.qk_norms
        return HeadNorms(query, key, self._config.norms.eps, self._config.family.norm_kind)

    def norm_width(self, layer: LayerWeights, qkv: Tensor) -> None:
        """Normalises the queries and keys in `qkv` where the norms are of all heads together."""
        if self._config.norms.qk == "width":
            key = self._config.kv_width // 2
            parts = torch.split(qkv[:, :-key], [qkv.shape[1] - 2 * key, key], dim=1)
            for part, weight in zip(parts, layer.qk_norms, strict=True):
                part.copy_(self.parts.norm(part, weight))


@dataclass(eq=False, slots=True)
class _CachedBatch:
    """`Batch` over rows of a cache."""

    attention: CachedAttention
    cache: RowCache
    places: Places
    qkv: Tensor
    gate_up: Tensor

    def attend(self, number: int, layer: LayerWeights) -> Tensor:
        """See `Batch`."""
        attention, cache = self.attention, self.cache.layers[number]
        attention.norm_width(layer, self.qkv)
        turns = self.cache.turns[attention.parts.rope_of_layer[number]]
        qkv = self.qkv.view(len(self.places.rows), -1, self.qkv.shape[1])
        queries = rotate_and_cache(qkv, turns, cache, self.places, attention.head_norms(layer))
        return cached_attention(queries, cache, self.places, attention.rules[number], layer.sinks).reshape(len(self.qkv), -1)

    def gated(self, gate_up: Tensor) -> Tensor:
        """See `Batch`."""
        return self.attention.parts.gate(gate_up)
