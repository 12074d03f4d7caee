"""Memory that forwards of one batch shape share."""

from __future__ import annotations

import torch
from torch import Tensor

from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.operators.batch_invariant.layers import complex_pairs, row_spans


class Buffers:
    """Outputs of a layer's products, and views of them.

    Made once for a batch of R rows and C tokens a row, because in a decode step a view costs as much as a small product.
    """

    def __init__(self, config: ModelConfig, batch: torch.Size, like: Tensor) -> None:
        (rows, count), key, size = batch, config.kv_width // 2, config.head_dim
        self.qkv = like.new_empty(rows * count, config.heads * config.head_dim + config.kv_width)
        """`[R * C, (heads + 2 * kv_heads) * head_dim]`"""
        self._new = self.qkv[:, -config.kv_width :]
        self._entries = torch.empty_like(self._new, memory_format=torch.contiguous_format)
        self._queries = self.qkv[:, : -config.kv_width].view(rows, count, config.kv_heads, -1, size).transpose(1, 2)
        self._by_head = torch.empty_like(self._queries, memory_format=torch.contiguous_format)
        # Views are made once too.
        self._views = self._entries.view(-1, size), self._by_head.view(rows * config.kv_heads, -1, size)
        self._pairs = self.qkv[:, :-key]
        self._wide = self._pairs.float()  # the same tensor, except in bfloat16, for which torch has no complex numbers
        self.rotations = [like.new_empty(self._wide.shape, dtype=torch.float32) for _ in dict.fromkeys(map(id, config.ropes))]
        """For each distinct rotary embedding, rows of its table, `[R * C, (heads + kv_heads) * head_dim]`, float32."""
        spans = row_spans(*self._wide.shape)
        self._turns = [
            [(complex_pairs(self._wide[start:end]), complex_pairs(rotation[start:end])) for start, end in spans]
            for rotation in self.rotations
        ]
        queries, keys = torch.split(self._pairs, [self._pairs.shape[1] - key, key], dim=1)
        size = config.head_dim if config.norms.qk == "head" else queries.shape[1]
        self.normed = [part.view(rows * count, -1, min(size, part.shape[1])) for part in (queries, keys)]
        """The queries and the keys of `qkv` in rows that are normalised: those of a head, or all of a token."""
        self.gate_up = like.new_empty(rows * count, 2 * config.intermediate_size)
        """`[R * C, 2 * intermediate_size]`"""
        self._halves = self.gate_up.chunk(2, dim=-1)

    def rotate(self, kind: int) -> None:
        """Turn queries and keys in place by one of the `rotations`."""
        if self._wide is not self._pairs:
            self._wide.copy_(self._pairs)
        for turned, turn in self._turns[kind]:
            turned.mul_(turn)
        if self._wide is not self._pairs:
            self._pairs.copy_(self._wide)

    def entries(self) -> Tensor:
        """What goes into the cache, `[R * C * 2 * kv_heads, head_dim]`."""
        self._entries.copy_(self._new)
        return self._views[0]

    def queries(self) -> Tensor:
        """`[R * kv_heads, C * heads / kv_heads, head_dim]`: queries of one key head are adjacent, so shared keys are not repeated."""
        self._by_head.copy_(self._queries)
        return self._views[1]

    def halves(self, gate_up: Tensor) -> tuple[Tensor, ...]:
        """Gates and ups, `[R * C, intermediate_size]` each, of a tensor like `gate_up`."""
        return self._halves if gate_up is self.gate_up else gate_up.chunk(2, dim=-1)

    def by_token(self, attended: Tensor) -> Tensor:
        """`[R * C, heads * head_dim]` from a tensor in the layout of `queries`."""
        if self._queries.shape[2] == 1:
            return attended.view(self.qkv.shape[0], -1)
        return attended.view(self._queries.shape).transpose(1, 2).reshape(self.qkv.shape[0], -1)
