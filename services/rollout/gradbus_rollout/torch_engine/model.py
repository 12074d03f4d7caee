"""One forward of a Llama or Qwen2 decoder over a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- the name the field knows it by

from gradbus_kernels.model_shape import ModelShape
from gradbus_rollout.torch_engine.attention import attend, visibility_biases
from gradbus_rollout.torch_engine.buffers import Buffers
from gradbus_rollout.torch_engine.cache import KvCache, pages
from gradbus_rollout.torch_engine.rope import rope_table
from gradbus_rollout.torch_engine.weights import LayerWeights, ModelWeights


class DecoderModel:
    """Weights and the forward. Every product's shape is given by the shape of its input alone."""

    def __init__(self, shape: ModelShape, like: Tensor) -> None:
        self.shape = shape
        self.weights = ModelWeights(shape, like)
        self._like = like
        self._rope = rope_table(shape, 0)
        self._buffers: dict[torch.Size, Buffers] = {}
        self._norm_eps_root = like.new_tensor(shape.norm_eps, dtype=torch.float32).sqrt()
        self._norm_scale = like.new_tensor(shape.hidden_size**-0.5, dtype=torch.float32)  # a tensor: a number is cast at each use

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, cache and hidden states."""
        return self._like.dtype

    def new_cache(self, rows: int) -> KvCache:
        """An empty cache for `rows` sequences."""
        return KvCache(self.shape, rows, self._like)

    def forward(self, tokens: Tensor, positions: Tensor, cache: KvCache) -> Tensor:
        """Hidden states `[R * C, hidden]` of `tokens` int64 `[R, C]` at `positions` int64 `[R, C]` of the cache's rows.

        Writes their keys and values first, then lets each token see the positions of its row up to its own.
        """
        longest = int(positions.max()) + 1
        cache.reserve(longest)
        self._reserve_rope(cache.capacity)
        spans = pages(longest)
        biases = visibility_biases(positions, spans, (self.shape.heads, self.shape.kv_heads))
        places = cache.places(positions)
        buffers = self._buffers_for(positions.shape)
        torch.index_select(self._rope, 0, positions.view(-1), out=buffers.rotation)
        x = self.weights.embedding.index_select(0, tokens.view(-1))
        for number, (layer, layer_pages) in enumerate(zip(self.weights.layers, cache.pages(spans), strict=True)):
            self._project(layer, x, buffers)
            cache.write(number, places, buffers.entries)
            attended = attend(buffers.queries(), layer_pages, biases)
            x.addmm_(buffers.by_token(attended), layer.out)
            self._feed_forward(layer, x, buffers)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, vocab]` from hidden states `[N, hidden]`."""
        return F.linear(self._norm(hidden, self.weights.norm), self.weights.head)

    def _project(self, layer: LayerWeights, x: Tensor, buffers: Buffers) -> None:
        """Queries, keys and values of `x` `[N, hidden]`, the first two rotated, into `buffers.qkv`."""
        normed = self._norm(x, layer.input_norm)
        if layer.qkv_bias is None:
            torch.mm(normed, layer.qkv, out=buffers.qkv)
        else:
            torch.addmm(layer.qkv_bias, normed, layer.qkv, out=buffers.qkv)
        buffers.rotate()

    def _feed_forward(self, layer: LayerWeights, x: Tensor, buffers: Buffers) -> None:
        """Add SwiGLU (Shazeer 2020) to `x` in place."""
        torch.mm(self._norm(x, layer.post_norm), layer.gate_up, out=buffers.gate_up)
        x.addmm_(F.silu(buffers.gate).mul_(buffers.up), layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm (Zhang and Sennrich 2019); sqrt(mean(x^2) + eps) as a hypotenuse is half the operations."""
        root = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32).mul_(self._norm_scale).hypot_(self._norm_eps_root)
        return torch.mul((x / root).to(x.dtype), weight)

    def _buffers_for(self, batch: torch.Size) -> Buffers:
        found = self._buffers.get(batch)
        if found is None:
            found = self._buffers[batch] = Buffers(self.shape, batch, self._like)
        return found

    def _reserve_rope(self, length: int) -> None:
        if length > self._rope.shape[0]:
            self._rope = rope_table(self.shape, length).to(self._like.device)
