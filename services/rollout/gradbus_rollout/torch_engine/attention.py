"""Attention over a paged cache whose bits do not depend on the number of pages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor

MASKED: Final = -1e30
"""Added to scores of positions a query may not see: exp gives exactly 0 beside any real score."""


def visibility_biases(positions: Tensor, pages: Sequence[tuple[int, int]], heads: tuple[int, int]) -> list[Tensor]:
    """0 where a query at `positions` `[R, C]` sees a key of a page (start, end), MASKED elsewhere; for every page.

    `heads` are the model's query and key heads. Float32 `[R * kv_heads, C * heads / kv_heads, end - start]` each.
    """
    (rows, count), (query, key) = positions.shape, heads
    seen = positions.view(rows, 1, count, 1).expand(-1, key, -1, query // key).reshape(-1)
    return [_page_bias(seen, start, end).view(rows * key, -1, end - start) for start, end in pages]


def attend(queries: Tensor, pages: Sequence[tuple[Tensor, Tensor]], biases: Sequence[Tensor]) -> Tensor:
    """Softmax attention of `queries` `[B, Q, D]` over all pages; the result has that shape too.

    B counts rows times key heads. Pages are keys, transposed, `[B, D, L]`, and values, `[B, L, D]`, biases `[B, Q, L]`. Every
    product has the fixed shape of its page, and the softmax, whose kernel sums in vector lanes, runs over whole pages: so a
    page that is masked for a row weighs 0 and adds exactly nothing to it.
    """
    scores = [_scores(queries, keys, bias) for (keys, _), bias in zip(pages, biases, strict=True)]
    if len(pages) == 1:
        return torch.bmm(scores[0].softmax(dim=-1).to(queries.dtype), pages[0][1])
    joined = torch.cat(scores, dim=-1).softmax(dim=-1).to(queries.dtype)
    weights = torch.split(joined, [bias.shape[-1] for bias in biases], dim=-1)
    result = torch.bmm(weights[0], pages[0][1])
    for weight, (_, values) in zip(weights[1:], pages[1:], strict=True):
        result.baddbmm_(weight, values)
    return result


def _page_bias(positions: Tensor, start: int, end: int) -> Tensor:
    return _first_visible(end - start, positions.device).index_select(0, (positions + (1 - start)).clamp_(0, end - start))


@cache
def _first_visible(length: int, device: torch.device) -> Tensor:
    """Row n of `[length + 1, length]` shows the first n keys."""
    return torch.full((length + 1, length), MASKED, device=device).triu()


def _scores(queries: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
    """Scaled and masked products, float32 `[B, Q, L]`."""
    scale = queries.shape[-1] ** -0.5
    if queries.dtype == bias.dtype:
        return torch.baddbmm(bias, queries, keys, alpha=scale)
    return torch.add(bias, torch.bmm(queries, keys).float(), alpha=scale)
