"""Attention over a paged cache whose bits do not depend on the number of pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from gradbus_kernels.operators.batch_invariant.attention import biases_of, weighted


def visibility_biases(seen: Tensor, spans: Sequence[tuple[int, int]], width: int) -> list[Tensor]:
    """0 where a query at `seen` `[B, Q]` sees a key of a page (start, end), MASKED elsewhere; for every page.

    Float32 `[B, width, end - start]` each: those past Q are of no query.
    """
    if width > seen.shape[1]:
        seen = functional.pad(seen, (0, width - seen.shape[1]))
    return [bias.view(*seen.shape, -1) for bias in biases_of(seen.reshape(-1), spans)]


def attend(queries: Tensor, pages: Sequence[tuple[Tensor, Tensor]], biases: Sequence[Tensor]) -> Tensor:
    """Softmax attention of `queries` `[B, Q, D]` over all pages; the result has that shape too.

    B counts rows times key heads. Pages are keys, transposed, `[B, D, L]`, and values, `[B, L, D]`, biases `[B, Q, L]`. Every
    product has the fixed shape of its page, and the softmax, whose kernel sums in vector lanes, runs over whole pages: so a
    page that is masked for a row weighs 0 and adds exactly nothing to it.
    """
    return weighted([_scores(queries, keys, bias) for (keys, _), bias in zip(pages, biases, strict=True)], pages)


def _scores(queries: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
    """Scaled and masked products, float32 `[B, Q, L]`."""
    scale = queries.shape[-1] ** -0.5
    if queries.dtype == bias.dtype:
        return torch.baddbmm(bias, queries, keys, alpha=scale)
    return torch.add(bias, torch.bmm(queries, keys).float(), alpha=scale)
