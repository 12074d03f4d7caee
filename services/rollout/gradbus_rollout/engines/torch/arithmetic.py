"""The engine's products and attention: as fast as torch computes them, or with the same bits as the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from gradbus_kernels.operators.batch_invariant.attention import attend as invariant_attend
from gradbus_kernels.operators.batch_invariant.attention import biases_of, padded_queries, weighted
from gradbus_kernels.operators.batch_invariant.matmul import multiply_blocks
from gradbus_kernels.operators.linear.onednn import is_product_for_onednn, times_transposed

_LEAST_ONEDNN: Final = 1 << 20
"""Multiplications of a product that oneDNN makes: smaller ones cost their call."""
Pages = Sequence[tuple[Tensor, Tensor]]
Spans = Sequence[tuple[int, int]]


class Arithmetic(Protocol):
    """Products of rows and weights, and attention. With either kind, a sample's bits depend on its prompt, seed and weights alone."""

    def multiply(self, x: Tensor, weight: Tensor, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """`[N, K]` by `[K, M]`, plus `addend`, `[N, M]` or `[M]`; into `out` if given, which may be `addend`."""
        ...

    def multiply_anywhere(self, x: Tensor, weight: Tensor, room: Tensor) -> Tensor:
        """`[N, K]` by `[K, M]`; in `room`, `[N, M]`, unless that costs a copy."""
        ...

    def width(self, count: int, size: int, spans: Spans, dtype: torch.dtype) -> int:
        """Number of queries, at least `count`, that the biases for `attend` are made for; `size` is head_dim, `spans` are the pages'."""
        ...

    def attend(self, queries: Tensor, pages: Pages, biases: Sequence[Tensor], scale: float) -> Tensor:
        """Attention of `[B, Q, D]` over pages; `scale` multiplies the products of queries and keys."""
        ...


class Fast:
    """Plain torch."""

    def multiply(self, x: Tensor, weight: Tensor, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """See `Arithmetic`."""
        if is_product_for_onednn(x, weight, _LEAST_ONEDNN):
            return _by_onednn(x, weight, addend, out)
        if addend is None:
            return torch.mm(x, weight) if out is None else torch.mm(x, weight, out=out)
        return torch.addmm(addend, x, weight) if out is None else torch.addmm(addend, x, weight, out=out)

    def multiply_anywhere(self, x: Tensor, weight: Tensor, room: Tensor) -> Tensor:
        """See `Arithmetic`."""
        if is_product_for_onednn(x, weight, _LEAST_ONEDNN):
            return times_transposed(x, weight.t())
        return torch.mm(x, weight, out=room)

    def width(self, count: int, size: int, spans: Spans, dtype: torch.dtype) -> int:  # noqa: ARG002
        """See `Arithmetic`."""
        return count

    def attend(self, queries: Tensor, pages: Pages, biases: Sequence[Tensor], scale: float) -> Tensor:
        """See `Arithmetic`."""
        return attend(queries, pages, biases, scale)


class BatchInvariant:
    """The trainer's operators. Bits do not depend on the number of rows, so prefill, decode and training agree."""

    def multiply(self, x: Tensor, weight: Tensor, addend: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """See `Arithmetic`."""
        return multiply_blocks(x, weight, addend, out)

    def multiply_anywhere(self, x: Tensor, weight: Tensor, room: Tensor) -> Tensor:
        """See `Arithmetic`."""
        return multiply_blocks(x, weight, out=room)

    def width(self, count: int, size: int, spans: Spans, dtype: torch.dtype) -> int:
        """See `Arithmetic`."""
        return padded_queries(count, size, tuple(end - start for start, end in spans), dtype)

    def attend(self, queries: Tensor, pages: Pages, biases: Sequence[Tensor], scale: float) -> Tensor:
        """See `Arithmetic`."""
        return invariant_attend(queries, pages, biases, scale)


def arithmetic_for(numerics: Literal["fast", "batch_invariant"]) -> Arithmetic:
    """Selects the arithmetic that a run's `numerics` names."""
    return BatchInvariant() if numerics == "batch_invariant" else Fast()


def _by_onednn(x: Tensor, weight: Tensor, addend: Tensor | None, out: Tensor | None) -> Tensor:
    if addend is None or addend.dim() == 1:
        product = times_transposed(x, weight.t(), addend)
        return product if out is None else out.copy_(product)
    product = times_transposed(x, weight.t())
    return product.add_(addend) if out is None else torch.add(addend, product, out=out)


def visibility_biases(seen: Tensor, spans: Spans, width: int, window: int | None = None) -> list[Tensor]:
    """0 where a query at `seen` `[B, Q]` sees a key of a page (start, end), MASKED elsewhere; for every page.

    Each is float32 `[B, width, end - start]`; rows past Q belong to no query. With a `window` a query sees the newest so many keys,
    its own included.
    """
    if width > seen.shape[1]:
        seen = functional.pad(seen, (0, width - seen.shape[1]))
    return [bias.view(*seen.shape, -1) for bias in biases_of(seen.reshape(-1), spans, window=window)]


def attend(queries: Tensor, pages: Sequence[tuple[Tensor, Tensor]], biases: Sequence[Tensor], scale: float) -> Tensor:
    """Softmax attention of `queries` `[B, Q, D]` over all pages; the result has that shape too.

    B counts rows times key heads. A page is keys, transposed, `[B, D, L]`, and values, `[B, L, D]`; biases are `[B, Q, L]`. Every
    product has the fixed shape of its page, and the softmax, whose kernel sums in vector lanes, runs over whole pages. So a
    page that is masked for a row has weight 0 and adds exactly nothing to it, and bits do not depend on the number of pages.
    """
    return weighted([_scores(queries, keys, bias, scale) for (keys, _), bias in zip(pages, biases, strict=True)], pages)


def attend_capped(softcap: float, queries: Tensor, pages: Pages, biases: Sequence[Tensor], scale: float) -> Tensor:
    """`attend`, where softcap · tanh(x / softcap) takes the place of a scaled score x."""
    bounded = [torch.bmm(queries, keys).float().mul_(scale / softcap).tanh_().mul_(softcap) for keys, _ in pages]
    return weighted([scores.add_(bias) for scores, bias in zip(bounded, biases, strict=True)], pages)


def _scores(queries: Tensor, keys: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Scaled and masked products, float32 `[B, Q, L]`."""
    if queries.dtype == bias.dtype:
        return torch.baddbmm(bias, queries, keys, alpha=scale)
    return torch.add(bias, torch.bmm(queries, keys).float(), alpha=scale)
