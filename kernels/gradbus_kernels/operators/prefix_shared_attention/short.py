"""Causal attention of many short sequences of equal length, by batched products.

Flash attention for CPUs takes one call of a BLAS for each product of each head of each sequence, and a row of a few scores is no
vector. Here a product is one call for all, and the softmax runs along the first of the dimensions keys, sequences, queries: its vectors are
queries of neighbouring sequences. Queries that share a key head are rows of one product.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

LONGEST: Final = 16
"""Tokens of a sequence up to which this is faster than flash attention."""


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output `[B, H, T, D]` and weights `[T, B · K, H / K · T]` for query `[B, H, T, D]`, key and value `[B, K, T, D]`."""
    scores = _scores(_flat(key), _by_key_head(query, key), scale)
    tokens = key.shape[2]
    hidden = torch.full((tokens, tokens), float("-inf"), dtype=scores.dtype).tril_(-1)
    weights = scores.add_(hidden.repeat(1, len(scores[0, 0]) // tokens)[:, None]).softmax(0)
    return torch.bmm(weights.permute(1, 2, 0), _flat(value)).view(query.shape), weights


def gradients(upstream: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; `upstream` is the output's, `weights` are those of `attend`."""
    rows, above = _by_key_head(query, key), _by_key_head(upstream, key)
    of_value = torch.bmm(weights.transpose(0, 1), above)
    of_weights = _scores(_flat(value), above, scale)
    of_scores = torch._softmax_backward_data(of_weights, weights, 0, weights.dtype)
    of_query = torch.bmm(of_scores.permute(1, 2, 0), _flat(key))
    of_key = torch.bmm(of_scores.transpose(0, 1), rows)
    return of_query.view(query.shape), of_key.view(key.shape), of_value.view(key.shape)


def _scores(keys: Tensor, queries: Tensor, scale: float) -> Tensor:
    """scale · keys · queriesᵀ, `[T, B · K, queries]`."""
    products = torch.bmm(keys, queries.transpose(1, 2)).transpose(0, 1)
    return torch.mul(products, scale, out=products.new_empty(products.shape))


def _flat(heads: Tensor) -> Tensor:
    """`[B · K, T, D]` of `[B, K, T, D]`."""
    return heads.reshape(-1, *heads.shape[2:])


def _by_key_head(heads: Tensor, key: Tensor) -> Tensor:
    """`[B · K, H / K · T, D]` of `[B, H, T, D]`."""
    return heads.reshape(key.shape[0] * key.shape[1], -1, key.shape[3])
