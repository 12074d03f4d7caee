"""Triton kernels of `prefix_shared_attention`: flash attention (Dao et al. 2022, Dao 2023) over two ranges of keys.

A block of queries runs over its root's keys and then over its own, with one running softmax, so no outputs are joined later.
A block of keys sums gradients from its own segment's queries and, in a root, from the queries of its branches, in order: there
are no atomics, and the bits are the same every time. The blocks of a segment depend on its length alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.block_sizes import INTERPRETED
from gradbus_kernels.operators.base.block_sizes import prefix_shared_attention as launch
from gradbus_kernels.operators.base.triton import tanh
from gradbus_kernels.operators.prefix_shared_attention.layout import AttentionRule, PrefixLayout


def attend_on_gpu(query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
    """See `prefix_shared_attention`. Saves its inputs, its output and a float32 per head and token."""
    output: Tensor = _Attention.apply(query, key, value, rule)
    return output


def attend_with_sinks_on_gpu(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, rule: AttentionRule) -> Tensor:
    """See `prefix_shared_attention_with_sinks`. Saves another float32 per head and token."""
    output: Tensor = _WithSinks.apply(query, key, value, sinks, rule)
    return output


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        output, sums = _attended(query, key, value, rule)
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.rule = rule
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        *gradients, _ = _gradients(ctx.saved_tensors, upstream, ctx.rule)
        return *gradients, None


class _WithSinks(torch.autograd.Function):
    """A sink adds to the denominator of the softmax alone: with output and log-sum-exp after it, the gradients' kernels are the same."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, rule: AttentionRule) -> Tensor:
        output, sums = _attended(query, key, value, rule)
        logits = sinks.detach().float()[:, None] * math.log2(math.e)
        both = torch.logaddexp2(sums, logits)
        output = (output * torch.exp2(sums - both).t()[..., None]).to(output.dtype)
        ctx.save_for_backward(query, key, value, output, both, torch.exp2(logits - both), sinks)
        ctx.rule = rule
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        *saved, of_sinks, sinks = ctx.saved_tensors
        *gradients, shift = _gradients(saved, upstream, ctx.rule)
        # The value of a sink is zero, so only the other weights' share of the softmax's gradient reaches its logit.
        return *gradients, (shift * of_sinks).sum(1).neg_().to(sinks.dtype), None


def _attended(query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """Output, and the binary logarithms of the sums of exponentials, float32 `[H, N]`."""
    tokens, heads, _ = query.shape
    output = query.new_empty(query.shape)
    sums = query.new_empty(heads, tokens, dtype=torch.float32)
    table = launch(query.shape[2], query.itemsize)
    blocks = _query_blocks(rule.layout, table.queries, query.device)
    if len(blocks):
        _forward[len(blocks), heads](
            query, key, value, output, sums, blocks, *_strides(query, key, value), tokens, **_launch_arguments(query, key, rule)
        )
    return output, sums


def _gradients(saved: Sequence[Tensor], upstream: Tensor, rule: AttentionRule) -> tuple[Tensor, ...]:
    """Those of query, key and value, and the sums of the output times its gradient, float32 `[H, N]`."""
    query, key, value, output, sums = saved
    tokens, heads, head_dim = query.shape
    upstream = upstream.contiguous()
    of_query, of_key, of_value = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    shift = torch.empty_like(sums)
    table, how, strides = launch(head_dim, query.itemsize), _launch_arguments(query, key, rule), _strides(query, key, value)
    queries = _query_blocks(rule.layout, table.queries, query.device)
    keys, branches = _key_blocks(rule.layout, table.keys, query.device)
    if len(queries):
        _backward_query[len(queries), heads](query, key, value, output, upstream, of_query, sums, shift, queries, *strides, tokens, **how)
        _backward_key[len(keys), key.shape[1]](
            query, key, value, upstream, of_key, of_value, sums, shift, keys, branches, *strides, tokens, **how
        )
    return of_query, of_key, of_value, shift


def _strides(*tensors: Tensor) -> list[int]:
    return [tensor.stride(dim) for tensor in tensors for dim in (0, 1)]


def _launch_arguments(query: Tensor, key: Tensor, rule: AttentionRule) -> dict[str, Any]:
    """Arguments that the three kernels share."""
    head_dim = query.shape[2]
    table = launch(head_dim, query.itemsize)
    return {
        "scale": rule.scale,
        "GROUP": query.shape[1] // key.shape[1],
        "HEAD": head_dim,
        "DIMS": max(16, triton.next_power_of_2(head_dim)),
        "QUERIES": table.queries,
        "KEYS": table.keys,
        "WINDOW": rule.window or 0,
        "SOFTCAP": rule.softcap or 0.0,
        "WIDE": INTERPRETED or query.dtype == torch.float32,
        "num_warps": table.warps,
        "num_stages": table.stages,
    }


@lru_cache(maxsize=64)
def _query_blocks(layout: PrefixLayout, size: int, device: torch.device) -> Tensor:
    """For each block, int32 `[blocks, 5]`: its first token, its segment's first and last + 1, its root's first and last + 1."""
    rows = []
    for segment, parent in enumerate(layout.parents):
        begin, end = layout.offsets[segment : segment + 2]
        root = (0, 0) if parent is None else layout.offsets[parent : parent + 2]
        rows += [(first, begin, end, *root) for first in range(begin, end, size)]
    return torch.tensor(rows, dtype=torch.int32, device=device).view(-1, 5)


@lru_cache(maxsize=64)
def _key_blocks(layout: PrefixLayout, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each block, `[blocks, 5]`: its first token, its segment's first and last + 1, the range of its branches in the second result.

    For each branch, `[branches, 2]`: its first token and its last + 1. Both int32.
    """
    of_root: dict[int, list[tuple[int, ...]]] = {}
    for segment, parent in enumerate(layout.parents):
        if parent is not None:
            of_root.setdefault(parent, []).append(layout.offsets[segment : segment + 2])
    rows: list[tuple[int, ...]] = []
    branches: list[tuple[int, ...]] = []
    for segment in range(len(layout.parents)):
        begin, end = layout.offsets[segment : segment + 2]
        known = len(branches)
        branches += of_root.get(segment, [])
        rows += [(first, begin, end, known, len(branches)) for first in range(begin, end, size)]
    table = [torch.tensor(part, dtype=torch.int32, device=device) for part in (rows, branches)]
    return table[0].view(-1, 5), table[1].view(-1, 2)


@triton.jit
def _tile(base, tokens, last, stride, HEAD: tl.constexpr, DIMS: tl.constexpr, WIDE: tl.constexpr):
    """Rows `tokens` of one head, [tokens, DIMS]; 0 from token `last` on and from dimension HEAD on."""
    dims = tl.arange(0, DIMS)
    valid = (tokens < last)[:, None] & (dims < HEAD)[None]
    tile = tl.load(base + tokens.to(tl.int64)[:, None] * stride + dims[None], mask=valid, other=0.0)
    return tile.to(tl.float32) if WIDE else tile


@triton.jit
def _scores(q, k, back, valid, scale, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr):
    """Scores to the base 2, -inf where a query does not see a key; `back` is the distance from key to query."""
    factor = scale / SOFTCAP if SOFTCAP > 0 else scale * 1.4426950408889634
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
    if SOFTCAP > 0:
        scores = tanh(scores) * (SOFTCAP * 1.4426950408889634)
    seen = valid & (back >= 0)
    if WINDOW > 0:
        seen = seen & (back < WINDOW)
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def _before_softcap(change, scores, SOFTCAP: tl.constexpr):
    """The gradient of scores before their bound, from that of the `scores`; both are 0 where a query does not see a key."""
    if SOFTCAP > 0:
        bounded = tl.where(scores == -float("inf"), 0.0, scores) / (SOFTCAP * 1.4426950408889634)
        change = change * (1.0 - bounded * bounded)
    return change


@triton.jit
def _nearest(first, position, WINDOW: tl.constexpr):
    """The first key that a query at `position` sees; `first` is the key at position 0."""
    return first + tl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else first


@triton.jit
def _attend(
    acc, total, top, q, positions, keys_at, values_at, begin, end, origin, scale, k_n, v_n,
    HEAD: tl.constexpr, DIMS: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Continues the running softmax (output, sum, maximum) of `q` over the keys [begin, end); `origin` is position 0."""
    for first in range(begin, end, KEYS):
        tokens = first + tl.arange(0, KEYS)
        k = _tile(keys_at, tokens, end, k_n, HEAD, DIMS, WIDE)
        v = _tile(values_at, tokens, end, v_n, HEAD, DIMS, WIDE)
        scores = _scores(q, k, positions[:, None] - (tokens - origin)[None], (tokens < end)[None], scale, WINDOW, SOFTCAP)
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp2(scores - level[:, None])
        faded = tl.exp2(top - level)
        total = total * faded + tl.sum(weights, 1)
        acc = acc * faded[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = higher
    return acc, total, top


@triton.jit
def _forward(
    query, key, value, output, sums, blocks, q_n, q_h, k_n, k_h, v_n, v_h, tokens, scale,
    GROUP: tl.constexpr, HEAD: tl.constexpr, DIMS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    block, head = blocks + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    first, begin, end = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    root, root_end = tl.load(block + 3), tl.load(block + 4)
    depth = root_end - root
    rows = first + tl.arange(0, QUERIES)
    positions = depth + rows - begin
    q = _tile(query + head * q_h, rows, end, q_n, HEAD, DIMS, WIDE)
    keys_at, values_at = key + head // GROUP * k_h, value + head // GROUP * v_h
    position = depth + first - begin
    acc = tl.full([QUERIES, DIMS], 0.0, tl.float32)
    total = tl.full([QUERIES], 0.0, tl.float32)
    top = tl.full([QUERIES], -float("inf"), tl.float32)
    acc, total, top = _attend(
        acc, total, top, q, positions, keys_at, values_at, _nearest(root, position, WINDOW), root_end, root,
        scale, k_n, v_n, HEAD, DIMS, KEYS, WINDOW, SOFTCAP, WIDE,
    )  # fmt: skip
    acc, total, top = _attend(
        acc, total, top, q, positions, keys_at, values_at, _nearest(begin, first - begin, WINDOW), tl.minimum(first + QUERIES, end),
        begin - depth, scale, k_n, v_n, HEAD, DIMS, KEYS, WINDOW, SOFTCAP, WIDE,
    )  # fmt: skip
    valid = rows < end
    total = tl.where(valid, total, 1.0)
    _store(output, rows, valid, head, tl.num_programs(1), acc / total[:, None], HEAD, DIMS)
    tl.store(sums + head * tokens + rows, top + tl.log2(total), mask=valid)


@triton.jit
def _store(to, rows, valid, head, heads, values, HEAD: tl.constexpr, DIMS: tl.constexpr):
    """Stores `values` into a contiguous [N, heads, HEAD]."""
    dims = tl.arange(0, DIMS)
    pointers = to + (rows.to(tl.int64)[:, None] * heads + head) * HEAD + dims[None]
    tl.store(pointers, values.to(to.dtype.element_ty), mask=valid[:, None] & (dims < HEAD)[None])


@triton.jit
def _query_gradient(
    acc, q, up, level, shift, positions, keys_at, values_at, begin, end, origin, scale, k_n, v_n,
    HEAD: tl.constexpr, DIMS: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Adds the part of the keys [begin, end) to the gradient of `q`, before the scale."""
    for first in range(begin, end, KEYS):
        tokens = first + tl.arange(0, KEYS)
        k = _tile(keys_at, tokens, end, k_n, HEAD, DIMS, WIDE)
        v = _tile(values_at, tokens, end, v_n, HEAD, DIMS, WIDE)
        scores = _scores(q, k, positions[:, None] - (tokens - origin)[None], (tokens < end)[None], scale, WINDOW, SOFTCAP)
        weights = tl.exp2(scores - level[:, None])
        change = weights * (tl.dot(up, tl.trans(v), input_precision="ieee") - shift[:, None])
        change = _before_softcap(change, scores, SOFTCAP)
        acc += tl.dot(change.to(k.dtype), k, input_precision="ieee")
    return acc


@triton.jit
def _backward_query(
    query, key, value, output, upstream, of_query, sums, shifts, blocks, q_n, q_h, k_n, k_h, v_n, v_h, tokens, scale,
    GROUP: tl.constexpr, HEAD: tl.constexpr, DIMS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries. Also stores into `shifts` the sum of output times its gradient, for each head and token."""
    block, head = blocks + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(1)
    first, begin, end = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    root, root_end = tl.load(block + 3), tl.load(block + 4)
    depth = root_end - root
    rows = first + tl.arange(0, QUERIES)
    valid = rows < end
    positions = depth + rows - begin
    q = _tile(query + head * q_h, rows, end, q_n, HEAD, DIMS, WIDE)
    up = _tile(upstream + head * HEAD, rows, end, heads * HEAD, HEAD, DIMS, WIDE)
    out = _tile(output + head * HEAD, rows, end, heads * HEAD, HEAD, DIMS, WIDE)
    shift = tl.sum(up.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(shifts + head * tokens + rows, shift, mask=valid)
    level = tl.load(sums + head * tokens + rows, mask=valid, other=0.0)
    keys_at, values_at = key + head // GROUP * k_h, value + head // GROUP * v_h
    position = depth + first - begin
    acc = tl.full([QUERIES, DIMS], 0.0, tl.float32)
    acc = _query_gradient(
        acc, q, up, level, shift, positions, keys_at, values_at, _nearest(root, position, WINDOW), root_end, root,
        scale, k_n, v_n, HEAD, DIMS, KEYS, WINDOW, SOFTCAP, WIDE,
    )  # fmt: skip
    acc = _query_gradient(
        acc, q, up, level, shift, positions, keys_at, values_at, _nearest(begin, first - begin, WINDOW), tl.minimum(first + QUERIES, end),
        begin - depth, scale, k_n, v_n, HEAD, DIMS, KEYS, WINDOW, SOFTCAP, WIDE,
    )  # fmt: skip
    _store(of_query, rows, valid, head, heads, acc * scale, HEAD, DIMS)


@triton.jit
def _key_gradient(
    of_key, of_value, k, v, positions, valid, queries_at, upstream_at, sums_at, shifts_at, begin, end, origin, scale, q_n, u_n,
    HEAD: tl.constexpr, DIMS: tl.constexpr, QUERIES: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Adds the part of the queries [begin, end) to the gradients of `k`, before the scale, and `v`; `origin` is position 0."""
    for first in range(begin, end, QUERIES):
        rows = first + tl.arange(0, QUERIES)
        there = rows < end
        q = _tile(queries_at, rows, end, q_n, HEAD, DIMS, WIDE)
        up = _tile(upstream_at, rows, end, u_n, HEAD, DIMS, WIDE)
        level = tl.load(sums_at + rows, mask=there, other=0.0)
        shift = tl.load(shifts_at + rows, mask=there, other=0.0)
        back = (rows - origin)[:, None] - positions[None]
        scores = _scores(q, k, back, there[:, None] & valid[None], scale, WINDOW, SOFTCAP)
        weights = tl.exp2(scores - level[:, None])
        of_value += tl.dot(tl.trans(weights).to(up.dtype), up, input_precision="ieee")
        change = weights * (tl.dot(up, tl.trans(v), input_precision="ieee") - shift[:, None])
        change = _before_softcap(change, scores, SOFTCAP)
        of_key += tl.dot(tl.trans(change).to(q.dtype), q, input_precision="ieee")
    return of_key, of_value


@triton.jit
def _backward_key(
    query, key, value, upstream, of_key, of_value, sums, shifts, blocks, branches, q_n, q_h, k_n, k_h, v_n, v_h, tokens, scale,
    GROUP: tl.constexpr, HEAD: tl.constexpr, DIMS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values: for each head, from their own segment's queries, then from each branch's."""
    block, kv_head = blocks + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    kv_heads = tl.num_programs(1)
    first, begin, end = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    known, known_end = tl.load(block + 3), tl.load(block + 4)
    columns = first + tl.arange(0, KEYS)
    valid = columns < end
    k = _tile(key + kv_head * k_h, columns, end, k_n, HEAD, DIMS, WIDE)
    v = _tile(value + kv_head * v_h, columns, end, v_n, HEAD, DIMS, WIDE)
    key_sum, value_sum = tl.full([KEYS, DIMS], 0.0, tl.float32), tl.full([KEYS, DIMS], 0.0, tl.float32)
    depth = end - begin
    reach = tl.minimum(first + KEYS, end) - begin + WINDOW - 1  # the last position that sees any of these keys, + 1
    u_n = kv_heads * GROUP * HEAD
    for member in range(GROUP):
        head = kv_head * GROUP + member
        queries_at, upstream_at = query + head * q_h, upstream + head * HEAD
        sums_at, shifts_at = sums + head * tokens, shifts + head * tokens
        last = tl.minimum(end, begin + reach) if WINDOW > 0 else end
        key_sum, value_sum = _key_gradient(
            key_sum, value_sum, k, v, columns - begin, valid, queries_at, upstream_at, sums_at, shifts_at, first, last, begin,
            scale, q_n, u_n, HEAD, DIMS, QUERIES, WINDOW, SOFTCAP, WIDE,
        )  # fmt: skip
        for branch in range(known, known_end):
            opens, closes = tl.load(branches + branch * 2), tl.load(branches + branch * 2 + 1)
            origin = opens - depth
            last = tl.minimum(closes, origin + reach) if WINDOW > 0 else closes
            key_sum, value_sum = _key_gradient(
                key_sum, value_sum, k, v, columns - begin, valid, queries_at, upstream_at, sums_at, shifts_at, opens, last, origin,
                scale, q_n, u_n, HEAD, DIMS, QUERIES, WINDOW, SOFTCAP, WIDE,
            )  # fmt: skip
    _store(of_key, columns, valid, kv_head, kv_heads, key_sum * scale, HEAD, DIMS)
    _store(of_value, columns, valid, kv_head, kv_heads, value_sum, HEAD, DIMS)
