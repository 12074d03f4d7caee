"""Attention over a paged cache whose bits do not depend on the number of pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

MASKED: Final = -1e30
"""Added to scores of positions a query may not see: exp gives exactly 0 beside any real score."""


def visibility_bias(positions: Tensor, length: int, heads: tuple[int, int]) -> Tensor:
    """0 where a query at `positions` `[R, C]` sees a key at 0..length-1, MASKED elsewhere.

    `heads` are the model's query and key heads. Returns float32 `[R * kv_heads, C * heads / kv_heads, length]`.
    """
    rows, count = positions.shape
    bias = (torch.arange(length, device=positions.device) > positions.unsqueeze(-1)) * MASKED
    return bias[:, None, :, None].expand(rows, heads[1], count, heads[0] // heads[1], length).reshape(rows * heads[1], -1, length)


def attend(queries: Tensor, pages: Sequence[tuple[Tensor, Tensor]], biases: Sequence[Tensor]) -> Tensor:
    """Softmax attention of `queries` `[B, Q, D]` over all pages; the result has that shape too.

    B counts rows times key heads. Pages are keys and values, `[B, L, D]` each, biases `[B, Q, L]`. Every product has the fixed
    shape of its page, and the softmax, whose kernel sums in vector lanes, runs over whole pages: so a page that is
    masked for a row weighs 0 and adds exactly nothing to it.
    """
    scores = [_scores(queries, keys, bias) for (keys, _), bias in zip(pages, biases, strict=True)]
    if len(pages) == 1:
        return torch.bmm(scores[0].softmax(dim=-1).to(queries.dtype), pages[0][1])
    joined = torch.cat(scores, dim=-1).softmax(dim=-1).to(queries.dtype)
    weights = torch.split(joined, [bias.shape[-1] for bias in biases], dim=-1)
    result = torch.bmm(weights[0], pages[0][1])
    for weight, (_, values) in zip(weights[1:], pages[1:], strict=True):
        result = torch.baddbmm(result, weight, values)
    return result


def _scores(queries: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
    """Scaled and masked products, float32 `[B, Q, L]`."""
    scale = queries.shape[-1] ** -0.5
    if queries.dtype == bias.dtype:
        return torch.baddbmm(bias, queries, keys.transpose(1, 2), alpha=scale)
    return torch.add(bias, torch.bmm(queries, keys.transpose(1, 2)).float(), alpha=scale)
