"""Attention with bounded scores on a CPU, in blocks of queries; torch's flash attention has no softcap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import slices

_QUERIES: Final = 64
"""Queries of a block, whatever stands beside them."""


@dataclass(frozen=True, slots=True)
class CappedAttention:
    """Attention of R rows of Q queries to L keys each, with grouped heads; in the dtype of its arguments.

    It has the two passes of torch's flash attention, and the backward pass takes joined outputs as that one does.
    """

    scale: float
    softcap: float
    depth: int | None
    """Distance from the first key to a row's first query, in tokens; None if every query sees every key."""
    window: int | None

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exps `[R, H, Q]`; query is `[R, H, Q, D]`, key and value `[R, K, L, D]`."""
        output, sums = torch.empty_like(query), query.new_empty(query.shape[:3])
        for queries in slices(query.shape[2], _QUERIES):
            columns, hidden = self._seen(queries, key.shape[2])
            bounded = self._tanh(query[:, :, queries], key[:, :, columns]).mul_(self.softcap)
            scores = _without(hidden, bounded)
            logs = scores.logsumexp(-1)
            weights = scores.sub_(logs.unsqueeze(-1)).exp_()
            sums[:, :, queries] = logs.flatten(1, 2)
            output[:, :, queries] = _times(weights, value[:, :, columns])
        return output, sums

    def backward(
        self, upstream: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, sums: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value, given the output with its gradient and log-sum-exps."""
        of_query, of_key, of_value = torch.empty_like(query), key.new_zeros(key.shape), value.new_zeros(value.shape)
        shifts = (upstream * output).sum(-1)
        for queries in slices(query.shape[2], _QUERIES):
            columns, hidden = self._seen(queries, key.shape[2])
            keys, above = key[:, :, columns], _grouped(upstream[:, :, queries], key.shape[1])
            tangents = self._tanh(query[:, :, queries], keys)
            slopes = 1.0 - tangents.square()
            levels, means = (_grouped(rows[:, :, queries], key.shape[1]).unsqueeze(-1) for rows in (sums, shifts))
            weights = _without(hidden, tangents.mul_(self.softcap)).sub_(levels).exp_()
            of_value[:, :, columns] += _summed(weights, above)
            changes = _products(above, value[:, :, columns]).sub_(means).mul_(weights).mul_(slopes).mul_(self.scale)
            of_query[:, :, queries] = _times(changes, keys)
            of_key[:, :, columns] += _summed(changes, _grouped(query[:, :, queries], key.shape[1]))
        return of_query, of_key, of_value

    def _seen(self, queries: slice, keys: int) -> tuple[slice, Tensor | None]:
        """The keys that any of these queries sees, and which of those a query does not see, `[q, l]`."""
        if self.depth is None:
            return slice(0, keys), None
        first = 0 if self.window is None else max(0, self.depth + queries.start - self.window + 1)
        last = min(keys, self.depth + queries.stop)
        back = self.depth + torch.arange(queries.start, queries.stop)[:, None] - torch.arange(first, last)
        return slice(first, last), (back < 0) | (back >= (self.window or self.depth + queries.stop + 1))

    def _tanh(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores over the softcap, bounded: `[R, K, H / K, q, l]`."""
        return _products(_grouped(query, key.shape[1]), key).mul_(self.scale / self.softcap).tanh_()


def _without(hidden: Tensor | None, scores: Tensor) -> Tensor:
    return scores if hidden is None else scores.masked_fill_(hidden, float("-inf"))


def _grouped(heads: Tensor, key_heads: int) -> Tensor:
    """`[R, K, H / K, q, ...]` from `[R, H, q, ...]`."""
    rows, count, *rest = heads.shape
    return heads.reshape(rows, key_heads, count // key_heads, *rest)


def _products(queries: Tensor, keys: Tensor) -> Tensor:
    """`[R, K, G, q, l]` from `[R, K, G, q, D]` and `[R, K, l, D]`: the queries that share a key head are rows of one product."""
    return (queries.flatten(2, 3) @ keys.transpose(2, 3)).view(*queries.shape[:4], -1)


def _times(weights: Tensor, tokens: Tensor) -> Tensor:
    """`[R, H, q, D]` from `[R, K, G, q, l]` and `[R, K, l, D]`."""
    return (weights.flatten(2, 3) @ tokens).view(*weights.shape[:4], -1).flatten(1, 2)


def _summed(weights: Tensor, rows: Tensor) -> Tensor:
    """`[R, K, l, D]` from `[R, K, G, q, l]` and `[R, K, G, q, D]`."""
    return weights.flatten(2, 3).transpose(2, 3) @ rows.flatten(2, 3)
