"""Attention of short groups by batched products.

Flash attention for CPUs takes one call of a BLAS for each product of each head of each segment, and each branch has two: to its own tokens
and to its root's. Here a product is one call for all groups of a block. The softmax runs along the keys, in vectors of queries; queries
that share a key head are rows of one product.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.prefix_shared_attention.blocks import Block
from gradbus_kernels.operators.prefix_shared_attention.layout import AttentionRule


class Heads(NamedTuple):
    """Query `[B * K, H / K * L, D]`, key and value `[B * K, L, D]` of a block."""

    query: Tensor
    key: Tensor
    value: Tensor

    @classmethod
    def of(cls, block: Block, query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype) -> Heads:
        """From query `[N, H, D]`, key and value `[N, K, D]`, cast to `dtype`."""
        return cls(*(block.gathered(tensor, key.shape[1], dtype) for tensor in (query, key, value)))


def attend(heads: Heads, bias: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """Output `[B * K, H / K * L, D]` and weights `[B * K, L, H / K * L]`, by key and query; `bias` is the block's."""
    query, key, value = heads
    if rule.softcap is None:
        scores = torch.baddbmm(bias, key, query.transpose(1, 2), alpha=rule.scale)
    else:
        scores = _tanh(heads, rule.scale / rule.softcap).mul_(rule.softcap).add_(bias)
    weights = scores.softmax(1)
    return torch.bmm(weights.transpose(1, 2), value), weights


def gradients(upstream: Tensor, heads: Heads, weights: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; `upstream` is the output's, `weights` are those of `attend`."""
    query, key, value = heads
    of_weights = torch.bmm(value, upstream.transpose(1, 2))
    of_scores = torch._softmax_backward_data(of_weights, weights, 1, weights.dtype).mul_(rule.scale)
    if rule.softcap is not None:
        of_scores.mul_(1.0 - _tanh(heads, rule.scale / rule.softcap).square_())
    return torch.bmm(of_scores.transpose(1, 2), key), torch.bmm(of_scores, query), torch.bmm(weights, upstream)


def _tanh(heads: Heads, factor: float) -> Tensor:
    """The bounded products of keys and queries, `[B * K, L, H / K * L]`."""
    return torch.bmm(heads.key, heads.query.transpose(1, 2)).mul_(factor).tanh_()
