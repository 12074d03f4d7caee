"""One forward of a decoder over a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.model_config import ModelConfig, read_model_config
from gradbus_kernels.models.rotary import rotation_table
from gradbus_kernels.operators.batch_invariant.attention import pages
from gradbus_kernels.operators.batch_invariant.layers import gated, normed_rows
from gradbus_rollout.engines.torch.arithmetic import Arithmetic, Fast, visibility_biases
from gradbus_rollout.engines.torch.buffers import Buffers
from gradbus_rollout.engines.torch.cache import KvCache
from gradbus_rollout.engines.torch.weights import LayerWeights, ModelWeights


class DecoderModel:
    """Weights and the forward. The shape of each product follows from the shape of its input alone."""

    def __init__(self, config: ModelConfig, like: Tensor, arithmetic: Arithmetic | None = None) -> None:
        """`like` gives the device and dtype of weights and cache; `arithmetic` defaults to `Fast`."""
        self._norm_heads = self._normed_heads if config.family.qk_norm else _nothing
        self.config = config
        self.weights = ModelWeights(config, like)
        self._like = like
        self._arithmetic = arithmetic or Fast()
        self._rope = like.new_empty(0, (config.heads + config.kv_heads) * config.head_dim, dtype=torch.float32)
        self._buffers: dict[torch.Size, Buffers] = {}

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights, cache and hidden states."""
        return self._like.dtype

    def new_cache(self, rows: int) -> KvCache:
        """An empty cache for `rows` sequences."""
        return KvCache(self.config, rows, self._like)

    def forward(self, tokens: Tensor, positions: Tensor, cache: KvCache) -> Tensor:
        """Hidden states `[R * C, hidden]` of `tokens` int64 `[R, C]` at `positions` int64 `[R, C]` of the cache's rows.

        Writes their keys and values into the cache first; each token then attends to the positions of its row up to its own.
        """
        longest = int(positions.max()) + 1
        cache.reserve(longest)
        self._reserve_rope(cache.capacity)
        spans = pages(longest)
        biases = self._biases(positions, spans)
        indexes = cache.indexes(positions)
        buffers = self._buffers_for(positions.shape)
        torch.index_select(self._rope, 0, positions.view(-1), out=buffers.rotation)
        x = self.weights.embedding.index_select(0, tokens.view(-1))
        for number, (layer, layer_pages) in enumerate(zip(self.weights.layers, cache.pages(spans), strict=True)):
            self._project(layer, x, buffers)
            cache.write(number, indexes, buffers.entries)
            attended = self._arithmetic.attend(buffers.queries(), layer_pages, biases)
            self._arithmetic.multiply(buffers.by_token(attended), layer.out, x, x)
            self._feed_forward(layer, x, buffers)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, vocab]` from hidden states `[N, hidden]`."""
        return self._arithmetic.multiply(self._norm(hidden, self.weights.norm), self.weights.head.t())

    def _biases(self, positions: Tensor, spans: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Biases of the queries, in the layout of `Buffers.queries`."""
        (rows, count), key, size = positions.shape, self.config.kv_heads, self.config.head_dim
        seen = positions.view(rows, 1, count, 1).expand(-1, key, -1, self.config.heads // key).reshape(rows * key, -1)
        width = self._arithmetic.width(seen.shape[1], size, tuple(end - start for start, end in spans), self.dtype)
        return visibility_biases(seen, spans, width)

    def _project(self, layer: LayerWeights, x: Tensor, buffers: Buffers) -> None:
        """Queries, keys and values of `x` `[N, hidden]`, the first two rotated, into `buffers.qkv`."""
        self._arithmetic.multiply(self._norm(x, layer.input_norm), layer.qkv, layer.qkv_bias, buffers.qkv)
        self._norm_heads(layer, buffers)
        buffers.rotate()

    def _normed_heads(self, layer: LayerWeights, buffers: Buffers) -> None:
        """Normalise each head of the queries and keys in `buffers.qkv`."""
        for heads, weight in zip(buffers.heads, layer.qk_norms, strict=True):
            heads.copy_(self._norm(heads, weight))

    def _feed_forward(self, layer: LayerWeights, x: Tensor, buffers: Buffers) -> None:
        """Add SwiGLU (Shazeer 2020) to `x` in place."""
        self._arithmetic.multiply(self._norm(x, layer.post_norm), layer.gate_up, out=buffers.gate_up)
        self._arithmetic.multiply(gated(buffers.gate, buffers.up), layer.down, x, x)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return normed_rows(x, weight, self.config.norm_eps)

    def _buffers_for(self, batch: torch.Size) -> Buffers:
        found = self._buffers.get(batch)
        if found is None:
            found = self._buffers[batch] = Buffers(self.config, batch, self._like)
        return found

    def _reserve_rope(self, length: int) -> None:
        if length > self._rope.shape[0]:
            table = rotation_table(self.config.rope, self.config.head_dim, length).to(self._like.device)
            # Whole rows multiply several times faster on a CPU than head by head.
            self._rope = table.repeat(1, self.config.heads + self.config.kv_heads)


def _nothing(layer: LayerWeights, buffers: Buffers) -> None:
    """Queries and keys are not normalised."""


def read_supported_config(folder: Path) -> ModelConfig:
    """Configuration of the model in `folder`. Raises ModelError for a model with a feature that the embedded engine does not compute."""
    check_model_folder(folder)
    config = read_model_config(folder)
    config.family.require("embedded_engine")
    if features := config.unfused_features:
        raise ModelError(f"config.json asks for {', '.join(features)}, which the embedded engine does not compute; choose another model")
    return config
