"""One forward of a Llama or Qwen2 decoder over a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- the name the field knows it by

from gradbus_rollout.torch_engine.attention import attend, visibility_bias
from gradbus_rollout.torch_engine.cache import KvCache, pages
from gradbus_rollout.torch_engine.rope import rope_table, rotate
from gradbus_rollout.torch_engine.shape import ModelShape
from gradbus_rollout.torch_engine.weights import LayerWeights, ModelWeights


class DecoderModel:
    """Weights and the forward. Every product's shape is given by the shape of its input alone."""

    def __init__(self, shape: ModelShape, like: Tensor) -> None:
        self.shape = shape
        self.weights = ModelWeights(shape, like)
        self._like = like
        self._rope = rope_table(shape, 0)
        self._norm_eps_root = like.new_tensor(shape.norm_eps, dtype=torch.float32).sqrt()
        self._norm_scale = like.new_tensor(shape.hidden_size**-0.5, dtype=torch.float32)  # a tensor: a number is cast at each use

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
        spans = list(pages(longest))
        bias = visibility_bias(positions, spans[-1][1], (self.shape.heads, self.shape.kv_heads))
        biases = [bias[..., start:end] for start, end in spans]
        places = cache.places(positions)
        rotation = self._rope.index_select(0, positions.view(-1))
        x = F.embedding(tokens.view(-1), self.weights.embedding)
        for number, layer in enumerate(self.weights.layers):
            queries, entries = self._project(layer, x, rotation)
            cache.write(number, places, entries)
            attended = attend(self._by_kv_head(queries, positions.shape), [cache.page(number, *span) for span in spans], biases)
            x = torch.addmm(x, self._by_token(attended, positions.shape), layer.out)
            x = self._feed_forward(layer, x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, vocab]` from hidden states `[N, hidden]`."""
        return F.linear(self._norm(hidden, self.weights.norm), self.weights.head)

    def _project(self, layer: LayerWeights, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries `[N, heads * head_dim]`, and rotated keys beside values `[N, kv_width]`."""
        normed = self._norm(x, layer.input_norm)
        qkv = torch.mm(normed, layer.qkv) if layer.qkv_bias is None else torch.addmm(layer.qkv_bias, normed, layer.qkv)
        rotate(qkv[:, : rotation.shape[1]], rotation)
        return qkv[:, : -self.shape.kv_width], qkv[:, -self.shape.kv_width :]

    def _feed_forward(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate, up = torch.mm(self._norm(x, layer.post_norm), layer.gate_up).chunk(2, dim=-1)
        return torch.addmm(x, F.silu(gate).mul_(up), layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm (Zhang and Sennrich 2019); sqrt(mean(x^2) + eps) as a hypotenuse is half the operations."""
        root = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32) * self._norm_scale
        return torch.mul((x / root.hypot(self._norm_eps_root)).to(x.dtype), weight)

    def _by_kv_head(self, queries: Tensor, batch: torch.Size) -> Tensor:
        """`[R * C, heads * head_dim]` to `[R * kv_heads, C * heads_per_kv_head, head_dim]`: shared keys are never repeated."""
        shape = self.shape
        split = queries.view(*batch, shape.kv_heads, -1, shape.head_dim).transpose(1, 2)
        return split.reshape(batch[0] * shape.kv_heads, -1, shape.head_dim)

    def _by_token(self, attended: Tensor, batch: torch.Size) -> Tensor:
        """The way back from `_by_kv_head`."""
        return attended.reshape(batch[0], self.shape.kv_heads, batch[1], -1).transpose(1, 2).reshape(batch.numel(), -1)

    def _reserve_rope(self, length: int) -> None:
        if length > self._rope.shape[0]:
            self._rope = rope_table(self.shape, length).to(self._like.device)
