"""Causal batch-invariant attention: a query's bits are a function of the query and of the keys and values that it sees.

Keys lie in pages of fixed lengths from position 0 on. Every product has the fixed shape of its page, and the softmax, whose
kernel sums in vector lanes, runs over whole pages; keys past a query have weight 0 and add exactly nothing. So one query
against a cache, a chunk of a prompt and a whole sequence give equal bits. With some narrow heads a BLAS sums a query in an order
that depends on its index in the product; heads are then padded with zeros.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gradbus_kernels.operators.base.arguments import check_dtype, check_floats, require
from gradbus_kernels.operators.base.dispatch import choose
from gradbus_kernels.operators.batch_invariant.matmul import WIDTH

MASKED: Final = -1e30
"""Added to scores of positions that a query may not see; after the softmax their weight is exactly 0."""
_BLOCK: Final = 32
"""Queries of the product that defines the bits."""
_TOKENS: Final = 256
"""Queries computed at a time; pages past all of them are skipped."""
_PAGE_ENDS: Final = (32, 64, 128, 256)
_LONGEST_PAGE: Final = 256
_PAGE_LENGTHS: Final = (32, 64, 128, 256)


def pages(length: int) -> Sequence[tuple[int, int]]:
    """(start, end) of the pages that hold positions 0..length-1; they are 32, 32, 64, 128 and then 256 positions long."""
    if length <= _PAGE_ENDS[-1]:
        return _pages(1 + bisect_left(_PAGE_ENDS, length))
    return _pages(len(_PAGE_ENDS) + -(-(length - _PAGE_ENDS[-1]) // _LONGEST_PAGE))


@lru_cache(maxsize=16)  # a decode asks for the same number many times, and all numbers of a long context would take gigabytes
def _pages(count: int) -> Sequence[tuple[int, int]]:
    last = _PAGE_ENDS[-1]
    ends = *_PAGE_ENDS, *(last + _LONGEST_PAGE * (more + 1) for more in range(count - len(_PAGE_ENDS)))
    return tuple(pairwise((0, *ends[:count])))


def invariant_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal softmax attention of `[B, H, T, D]` over `[B, KH, S, D]` with grouped heads; the last query is at the last key's position.

    Differentiable. A query's bits do not depend on B, on the other queries or on their number. Beyond inputs and outputs it needs
    memory for the scores of 256 queries; the backward pass is torch's fused attention. Raises ValueError that names the argument,
    and RuntimeError where this machine's BLAS has no invariant product.
    """
    check_floats("query", query, (None, None, None, None))
    rows, heads, count, size = query.shape
    check_floats("key", key, (rows, None, None, size), query)
    key_heads, length = key.shape[1:3]
    check_floats("value", value, (rows, key_heads, length, size), query)
    check_dtype("key", key, "query", query)
    check_dtype("value", value, "query", query)
    require(math.isfinite(scale), "scale", f"is {scale}; pass a finite number")
    require(key_heads > 0 and heads % key_heads == 0, "key", f"has {key_heads} heads; pass a number that divides the query's {heads}")
    require(length >= count, "key", f"has {length} positions for {count} queries; pass all that they see")
    chosen = choose("invariant_attention", query, ("reference", "cpu", "triton"))
    if chosen == "reference":
        return invariant_attention_reference(query, key, value, scale)
    out: Tensor = _Attention.apply(query, key, value, scale, chosen == "triton")  # type: ignore[no-untyped-call]
    return out


def invariant_attention_reference(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The same by its definition; its bits may depend on the other queries."""
    count, length = query.shape[2], key.shape[2]
    visible = torch.ones(count, length, dtype=torch.bool, device=query.device).tril(length - count)
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for part in (key, value))
    return (query @ key.transpose(2, 3) * scale).masked_fill(~visible, float("-inf")).softmax(-1) @ value


def attend(queries: Tensor, spans: Sequence[tuple[Tensor, Tensor]], biases: Sequence[Tensor], scale: float) -> Tensor:
    """Attention of `queries` `[B, Q, D]` over all pages, `[B, Q, D]`; no gradient.

    `spans` has transposed keys `[B, D, L]` and values `[B, L, D]` of each page; `biases`, float32 `[B or 1, W, L]`, are the result of
    `biases_of` for W = `padded_queries` positions.
    """
    (_, count, size), padded, lengths = queries.shape, biases[0].shape[1], tuple(bias.shape[-1] for bias in biases)
    extra = _head_size(size, queries.dtype, torch.get_num_threads()) - size
    if padded > count or extra:
        queries = functional.pad(queries, (0, extra, 0, padded - count))
    if extra:
        spans = [_padded_page(keys, values, extra) for keys, values in spans]
    width = query_width(count, size, lengths, queries.dtype)
    if width == padded:
        found = _attend(queries, spans, biases, scale)
    else:
        cuts = [slice(start, start + width) for start in range(0, padded, width)]
        found = torch.cat([_attend(queries[:, cut], spans, [bias[:, cut] for bias in biases], scale) for cut in cuts], dim=1)
    return found[:, :count, :size].contiguous() if padded > count or extra else found


def weighted(scores: Sequence[Tensor], spans: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Values of all pages, weighted by one softmax over `scores`, float32 `[B, Q, L]` of each page; `[B, Q, D]` in the values' dtype."""
    first = spans[0][1]
    joined = torch.softmax(scores[0] if len(scores) == 1 else torch.cat(list(scores), dim=-1), dim=-1)
    if joined.dtype != first.dtype:
        joined = joined.to(first.dtype)
    if len(scores) == 1:
        return torch.bmm(joined, first)
    weights = joined.split_with_sizes([page.shape[-1] for page in scores], dim=-1)
    result = torch.bmm(weights[0], first)
    for weight, (_, page) in zip(weights[1:], spans[1:], strict=True):
        result.baddbmm_(weight, page)
    return result


def biases_of(positions: Tensor, spans: Sequence[tuple[int, int]], copies: int = 1, window: int | None = None) -> list[Tensor]:
    """For each page (start, end), float32 `[Q, end - start]`: 0 where the query at `positions` `[Q]` sees the key, else MASKED.

    No position lies past the last page. Rows have `copies` copies of this side by side, for queries at one position. With a `window` a
    query sees the newest so many keys, its own included.
    """
    if window is not None:
        seen, passed = biases_of(positions, spans, copies), (_clamped(positions - window, span, copies) for span in spans)
        return [bias.masked_fill(gone == 0.0, MASKED) for bias, gone in zip(seen, passed, strict=True)]
    if len(spans) == 1:
        return [_first_visible(spans[0][1], copies, positions.device)[1].index_select(0, positions)]
    return [_clamped(positions, span, copies) for span in spans]


def _clamped(positions: Tensor, span: tuple[int, int], copies: int) -> Tensor:
    """The bias of one page, of queries that may lie before or after it."""
    start, end = span
    return _first_visible(end - start, copies, positions.device)[0].index_select(0, (positions + (1 - start)).clamp_(0, end - start))


def padded_queries(count: int, size: int, lengths: tuple[int, ...], dtype: torch.dtype) -> int:
    """The number of queries that `attend` pads `count` to, for head size `size` and pages of `lengths`."""
    width = query_width(count, size, lengths, dtype)
    return -(-count // width) * width


def query_width(count: int, size: int, lengths: tuple[int, ...], dtype: torch.dtype) -> int:
    """The least number of queries in a product, from `count` on, that gives the definition's bits."""
    return _query_width(count, size, frozenset(lengths), dtype, torch.get_num_threads())


@cache
def _query_width(count: int, size: int, lengths: frozenset[int], dtype: torch.dtype, threads: int) -> int:
    wider = (1 << power for power in range(count.bit_length(), _BLOCK.bit_length()))
    shapes = [_PageShape(_head_size(size, dtype, threads), length, dtype, threads) for length in lengths]
    return next(width for width in (count, *wider, _BLOCK) if all(_agrees(width, shape) for shape in shapes))


@cache
def _head_size(size: int, dtype: torch.dtype, threads: int) -> int:
    """The head size that products use for heads of `size`: `size`, or the next multiple of `WIDTH` if `size` has no definition.

    One size serves all page lengths, so that a query's first pages do not depend on how many follow. Raises RuntimeError if neither works.
    """
    for wide in (size, size + -size % WIDTH):
        if all(_agrees(_BLOCK, _PageShape(wide, length, dtype, threads)) for length in _PAGE_LENGTHS):
            return wide
    raise RuntimeError(f"queries of heads of {size} depend on their index in a product; run with numerics = 'fast' on this machine")


class _PageShape(NamedTuple):
    size: int
    length: int
    dtype: torch.dtype
    threads: int


@cache
def _agrees(count: int, shape: _PageShape) -> bool:
    """Whether products of `count` queries have the bits of products of `_BLOCK` queries, tried on random numbers.

    In float32 another order of sums changes most elements; a narrower dtype hides the change, so it takes the definition alone. False
    if a block's queries depend on their index: `_agrees(_BLOCK, shape)` says whether the shape has a definition on this machine.
    """
    if count != _BLOCK and shape.dtype != torch.float32:
        return False
    draw, padded = torch.Generator().manual_seed(0), -(-count // _BLOCK) * _BLOCK
    sizes = (padded, shape.size), (padded, shape.length), (shape.length, shape.size), (shape.length, shape.size)
    queries, weights, keys, values = (torch.randn(2, *size, generator=draw).to(shape.dtype) for size in sizes)
    bias = torch.randn(2, *sizes[1], generator=draw)

    def products(at: slice, order: list[int]) -> Tensor:
        query, weight, added = (part[:, at][:, order].contiguous() for part in (queries, weights, bias))
        found = torch.bmm(weight, values)
        return torch.cat((_scores(query, keys.transpose(1, 2), added), found, found.clone().baddbmm_(weight, values)), dim=-1)

    forth = list(range(_BLOCK))
    parts = torch.cat([products(slice(at, at + _BLOCK), forth) for at in range(0, padded, _BLOCK)], dim=1)
    if not torch.equal(products(slice(0, _BLOCK), forth[::-1]).flip(1), parts[:, :_BLOCK]):
        return False
    return torch.equal(products(slice(0, count), list(range(count))), parts[:, :count])


def _padded_page(keys: Tensor, values: Tensor, extra: int) -> tuple[Tensor, Tensor]:
    """The page with heads extended by `extra` zeros; the keys remain the transpose of a contiguous tensor."""
    return functional.pad(keys.transpose(1, 2), (0, extra)).transpose(1, 2), functional.pad(values, (0, extra))


def _attend(queries: Tensor, spans: Sequence[tuple[Tensor, Tensor]], biases: Sequence[Tensor], scale: float) -> Tensor:
    """Attention with one product for each page."""
    if queries.dtype == torch.float32:
        queries, scale = queries * scale, 1.0
    return weighted([_scores(queries, keys, bias, scale) for (keys, _), bias in zip(spans, biases, strict=True)], spans)


def _scores(queries: Tensor, keys: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
    """Masked products, float32 `[B, Q, L]`. A product in another dtype is scaled afterwards, in float32, to lose no precision."""
    if queries.dtype == torch.float32:
        return torch.baddbmm(bias, queries, keys)
    return torch.add(bias, torch.bmm(queries, keys).float(), alpha=scale)


@cache
def _first_visible(length: int, copies: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row n of the first tensor, `[length + 1, copies * length]`, shows the first n keys; row n of the second one more."""
    table = torch.full((length + 1, length), MASKED, device=device).triu().repeat(1, copies)
    return table, table[1:]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, triton: bool) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        if not query.numel():
            return query.clone()
        if triton:
            from gradbus_kernels.operators.batch_invariant.triton.attention import attention  # noqa: PLC0415 - only where Triton runs

            return attention(query, key, value, scale)
        return _forward(query, key, value, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The backward pass of torch's fused attention, whose forward pass runs again; only forward bits must be invariant."""
        if not grad.numel():
            return (*(torch.zeros_like(tensor) for tensor in ctx.saved_tensors), None, None)
        query, key, value = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        count, length = query.shape[2], key.shape[2]
        mask = None if count == length else torch.ones(count, length, dtype=torch.bool, device=grad.device).tril(length - count)
        grouped = query.shape[1] != key.shape[1]
        with torch.enable_grad():
            out = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, scale=ctx.scale, enable_gqa=grouped
            )
        return (*torch.autograd.grad(out, (query, key, value), grad), None, None)


def _forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    (rows, heads, count, size), (key_heads, length) = query.shape, key.shape[1:3]
    padding = (0, 0, 0, pages(length)[-1][1] - length)
    keys, values = (functional.pad(part, padding).flatten(0, 1) for part in (key, value))
    # The query heads of a key head are neighbours, so that each key head is read once.
    grouped = query.reshape(rows, key_heads, heads // key_heads, count, size).transpose(2, 3)
    parts = []
    for start in range(0, count, _TOKENS):
        block = grouped[:, :, start : start + _TOKENS]
        seen = torch.arange(block.shape[2], device=query.device).add_(length - count + start).repeat_interleave(block.shape[3])
        spans = pages(int(seen[-1]) + 1)
        padded = padded_queries(len(seen), size, tuple(stop - begin for begin, stop in spans), query.dtype)
        biases = [bias[None] for bias in biases_of(functional.pad(seen, (0, padded - len(seen))), spans)]
        key_values = [(keys[:, begin:stop].transpose(1, 2), values[:, begin:stop]) for begin, stop in spans]
        parts.append(attend(block.reshape(rows * key_heads, -1, size), key_values, biases, scale))
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return joined.view(rows, key_heads, count, -1, size).transpose(2, 3).reshape(query.shape)
