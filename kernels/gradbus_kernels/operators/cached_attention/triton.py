"""Triton kernels of `cached_attention`, `rotate_and_cache` and `copy_rows`.

A tile has queries of one batch row that share a key head, of one token or of several. With one token a row, its keys are cut into splits
of a fixed size from position 0 on, each a program of `_attend`; those past the row's length return at once. `_join` joins the splits in
blocks of a fixed size, in order. So neither the capacity nor other rows change a row's bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import CACHED_COPY, CACHED_HEADS, CACHED_SPLIT, CACHED_SPLITS, INTERPRETED
from gradbus_kernels.operators.base.block_sizes import cached_attention as launch
from gradbus_kernels.operators.base.triton import tanh
from gradbus_kernels.operators.cached_attention.reference import CachedRule, LayerCache, Places
from gradbus_kernels.operators.decoder_layer.head_norm import HeadNorms

_LOG2E = tl.constexpr(1.4426950408889634)


def attend_cached(queries: Tensor, cache: LayerCache, places: Places, rule: CachedRule, sinks: Tensor | None) -> Tensor:
    """See `cached_attention`."""
    batch, count, heads, size = queries.shape
    _, key_heads, capacity, _ = cache.keys.shape
    out = torch.empty_like(queries)
    if not out.numel():
        return out
    group = heads // key_heads
    splits = triton.cdiv(capacity, CACHED_SPLIT) if count == 1 else 0
    table = launch(size, queries.itemsize, group if splits else None)
    parts = queries.new_empty(batch * heads * splits, size, dtype=torch.float32)
    sums = queries.new_empty(2, len(parts), dtype=torch.float32)
    dims = max(16, triton.next_power_of_2(size))
    _attend[batch * key_heads, triton.cdiv(count * group, table.queries), max(1, splits)](
        queries, *cache, *places, None if splits else sinks, out, parts, *sums, count, capacity, rule.scale,
        KEY_HEADS=key_heads, GROUP=group, HEAD=size, DIMS=dims, QUERIES=table.queries, KEYS=table.keys,
        SPLIT=CACHED_SPLIT if splits else 0, WINDOW=rule.window or 0, SOFTCAP=rule.softcap or 0.0,
        WIDE=INTERPRETED or queries.dtype == torch.float32, num_warps=table.warps, num_stages=table.stages,
    )  # fmt: skip
    if splits:
        _join[batch, heads](
            parts, *sums, places.starts, sinks, out, splits,
            HEAD=size, DIMS=dims, SPLIT=CACHED_SPLIT, WINDOW=rule.window or 0, AT_ONCE=CACHED_SPLITS,
            num_warps=1 if dims <= 128 else 4,
        )  # fmt: skip
    return out


def rotate_into(qkv: Tensor, turns: Tensor, cache: LayerCache, places: Places, norms: HeadNorms | None) -> Tensor:
    """See `rotate_and_cache`."""
    _, key_heads, capacity, size = cache.keys.shape
    batch, count, width = qkv.shape
    heads = width // size - 2 * key_heads
    queries = qkv.new_empty(batch, count, heads, size)
    if queries.numel():
        _rotate[batch * count, triton.cdiv(heads + 2 * key_heads, CACHED_HEADS)](
            qkv, queries, *cache, turns, *places, count, capacity, turns.shape[1], **_of_norms(norms),
            HEADS=heads, KEY_HEADS=key_heads, HEAD=size, DIMS=triton.next_power_of_2(size), BLOCK=CACHED_HEADS,
        )  # fmt: skip
    return queries


def copy_lines(into: Tensor, rows: Tensor, source: Tensor, source_rows: Tensor, length: int) -> None:
    """See `copy_rows`."""
    layers, _, key_heads, _, size = into.shape
    if rows.numel() * length:
        _copy[triton.cdiv(length * size, CACHED_COPY), len(rows), layers * key_heads](
            into, rows, source, source_rows, into.shape[1], source.shape[1], key_heads,
            into.shape[3] * size, source.shape[3] * size, length * size, BLOCK=CACHED_COPY,
        )  # fmt: skip


def _of_norms(norms: HeadNorms | None) -> dict[str, Any]:
    if norms is None:
        return {"query_norm": None, "key_norm": None, "eps": 0.0, "CAST_FIRST": False, "OFFSET": False}
    return {
        "query_norm": norms.query,
        "key_norm": norms.key,
        "eps": norms.eps,
        "CAST_FIRST": norms.kind == "llama",
        "OFFSET": norms.kind == "offset",
    }


@triton.jit
def _attend(
    queries, keys, values, starts, rows, sinks, out, parts, sums, tops, count, capacity, scale,
    KEY_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, DIMS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    SPLIT: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """A tile of queries over all keys that one of them sees, or over those of a split."""
    item, key_head = tl.program_id(0).to(tl.int64) // KEY_HEADS, tl.program_id(0) % KEY_HEADS
    start = tl.load(starts + item).to(tl.int32)
    index = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    token, head = index // GROUP, key_head * GROUP + index % GROUP
    valid = token < count
    last = start + tl.minimum((tl.program_id(1) * QUERIES + QUERIES - 1) // GROUP, count - 1)
    begin, end = _nearest(start + tl.program_id(1) * QUERIES // GROUP, WINDOW), tl.minimum(last + 1, capacity)
    if SPLIT > 0:
        begin, end = tl.maximum(begin, tl.program_id(2) * SPLIT), tl.minimum(end, tl.program_id(2) * SPLIT + SPLIT)
        if begin >= end:
            return
    dims = tl.arange(0, DIMS)
    inside = valid[:, None] & (dims < HEAD)[None]
    row = (item * count + token) * (KEY_HEADS * GROUP) + head
    q = tl.load(queries + row[:, None] * HEAD + dims[None], mask=inside, other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    line = (tl.load(rows + item).to(tl.int64) * KEY_HEADS + key_head) * capacity * HEAD
    acc, total, top = _softmax(
        q, start + token, keys + line, values + line, begin, end, scale, QUERIES, HEAD, DIMS, KEYS, WINDOW, SOFTCAP, WIDE
    )
    if SPLIT > 0:
        part = row * tl.num_programs(2) + tl.program_id(2)
        tl.store(parts + part[:, None] * HEAD + dims[None], acc, mask=inside)
        tl.store(sums + part, total, mask=valid)
        tl.store(tops + part, top, mask=valid)
    else:
        if sinks is not None:
            acc, total = _with_sink(acc, total, top, tl.load(sinks + head, mask=valid, other=0.0))
        attended = acc / tl.where(valid, total, 1.0)[:, None]
        tl.store(out + row[:, None] * HEAD + dims[None], attended.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _nearest(position, WINDOW: tl.constexpr):
    """The first key that a query at `position` sees."""
    return tl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else 0


@triton.jit
def _softmax(
    q, positions, keys, values, begin, end, scale,
    QUERIES: tl.constexpr, HEAD: tl.constexpr, DIMS: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Running softmax of `q` over the keys [begin, end) in blocks: sums of values, sums of exponentials and maxima, to the base 2."""
    dims = tl.arange(0, DIMS)
    acc = tl.full([QUERIES, DIMS], 0.0, tl.float32)
    total = tl.full([QUERIES], 0.0, tl.float32)
    top = tl.full([QUERIES], -float("inf"), tl.float32)
    for first in range(begin, end, KEYS):
        key = first + tl.arange(0, KEYS)
        at = key[:, None] * HEAD + dims[None]
        inside = (key < end)[:, None] & (dims < HEAD)[None]
        k, v = tl.load(keys + at, mask=inside, other=0.0), tl.load(values + at, mask=inside, other=0.0)
        if WIDE:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale / SOFTCAP if SOFTCAP > 0 else scale * _LOG2E)
        if SOFTCAP > 0:
            scores = tanh(scores) * (SOFTCAP * _LOG2E)
        back = positions[:, None] - key[None]
        seen = (key < end)[None] & (back >= 0)
        if WINDOW > 0:
            seen = seen & (back < WINDOW)
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        level = tl.where(higher == -float("inf"), 0.0, higher)
        weights, faded = tl.exp2(scores - level[:, None]), tl.exp2(top - level)
        total = total * faded + tl.sum(weights, 1)
        acc = acc * faded[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = higher
    return acc, total, top


@triton.jit
def _with_sink(acc, total, top, sink):
    """Output and sum of the softmaxes `[N]` with a key of value zero more, whose score is `sink`."""
    level = sink.to(tl.float32) * _LOG2E
    higher = tl.maximum(top, level)
    faded = tl.exp2(top - higher)
    return acc * faded[:, None], total * faded + tl.exp2(level - higher)


@triton.jit
def _join(
    parts, sums, tops, starts, sinks, out, splits,
    HEAD: tl.constexpr, DIMS: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, AT_ONCE: tl.constexpr,
) -> None:  # fmt: skip
    """Joins the splits of one query head of a batch row."""
    item, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = item * tl.num_programs(1) + head
    position = tl.load(starts + item).to(tl.int32)
    begin, end = _nearest(position, WINDOW) // SPLIT, tl.minimum(position // SPLIT + 1, splits)
    dims = tl.arange(0, DIMS)
    acc = tl.full([1, DIMS], 0.0, tl.float32)
    total = tl.full([1], 0.0, tl.float32)
    top = tl.full([1], -float("inf"), tl.float32)
    for first in range(begin // AT_ONCE * AT_ONCE, end, AT_ONCE):
        split = first + tl.arange(0, AT_ONCE)
        valid = (split >= begin) & (split < end)
        part = row * splits + split
        levels = tl.load(tops + part, mask=valid, other=-float("inf"))
        higher = tl.maximum(top, tl.max(levels, 0))
        share, faded = tl.exp2(levels - higher), tl.exp2(top - higher)
        values = tl.load(parts + part[:, None] * HEAD + dims[None], mask=valid[:, None] & (dims < HEAD)[None], other=0.0)
        acc = acc * faded[:, None] + tl.sum(values * share[:, None], 0)[None]
        total = total * faded + tl.sum(tl.load(sums + part, mask=valid, other=0.0) * share, 0)
        top = higher
    if sinks is not None:
        acc, total = _with_sink(acc, total, top, tl.load(sinks + head))
    tl.store(out + row * HEAD + dims[None], (acc / total[:, None]).to(out.dtype.element_ty), mask=(dims < HEAD)[None])


@triton.jit
def _rotate(
    qkv, queries, keys, values, turns, starts, rows, count, capacity, length, query_norm, key_norm, eps,
    CAST_FIRST: tl.constexpr, OFFSET: tl.constexpr,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Some heads of a token: queries, keys or values."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    item = token // count
    position = tl.load(starts + item) + token % count
    dims = tl.arange(0, DIMS)
    of_query, of_key = head < HEADS, (head >= HEADS) & (head < HEADS + KEY_HEADS)
    of_value = (head >= HEADS + KEY_HEADS) & (head < HEADS + 2 * KEY_HEADS)
    room = (dims < HEAD)[None]
    turned, there = (of_query | of_key)[:, None] & room, (of_query | of_key | of_value)[:, None] & room
    source = qkv + (token * (HEADS + 2 * KEY_HEADS) + head)[:, None] * HEAD
    plain = tl.load(source + dims[None], mask=there, other=0.0)
    own, other = plain.to(tl.float32), tl.load(source + (dims ^ 1)[None], mask=turned, other=0.0).to(tl.float32)
    if query_norm is not None:
        root = tl.sqrt(tl.sum(own * own, 1) / HEAD + eps)[:, None]
        own = _weighted(own / root, query_norm, key_norm, of_query, dims, qkv.dtype.element_ty, HEAD, CAST_FIRST, OFFSET)
        other = _weighted(other / root, query_norm, key_norm, of_query, dims ^ 1, qkv.dtype.element_ty, HEAD, CAST_FIRST, OFFSET)
    turn = turns + (tl.where(of_query, 0, length)[:, None] + tl.minimum(position, length - 1)) * HEAD
    cos = tl.load(turn + (dims // 2 * 2)[None], mask=turned, other=1.0)
    sin = tl.load(turn + (dims // 2 * 2 + 1)[None], mask=turned, other=0.0)
    rotated = (own * cos + other * tl.where(dims % 2 == 0, -sin, sin)).to(qkv.dtype.element_ty)
    tl.store(queries + (token * HEADS + head)[:, None] * HEAD + dims[None], rotated, mask=of_query[:, None] & room)
    line = tl.load(rows + item).to(tl.int64) * KEY_HEADS + (head - HEADS) % KEY_HEADS
    at = (line * capacity + position)[:, None] * HEAD + dims[None]
    room = room & (position < capacity)
    tl.store(keys + at, rotated, mask=of_key[:, None] & room)
    tl.store(values + at, plain, mask=of_value[:, None] & room)


@triton.jit
def _weighted(
    unit, query_norm, key_norm, of_query, dims, dtype: tl.constexpr, HEAD: tl.constexpr, CAST_FIRST: tl.constexpr, OFFSET: tl.constexpr
):
    """Heads of root mean square 1 times the weights of their norms, rounded as the model's family has it."""
    inside = dims < HEAD
    of_queries = tl.load(query_norm + dims, mask=inside, other=0.0).to(tl.float32)
    of_keys = tl.load(key_norm + dims, mask=inside, other=0.0).to(tl.float32)
    weight = tl.where(of_query[:, None], of_queries[None], of_keys[None])
    if CAST_FIRST:
        unit = unit.to(dtype).to(tl.float32)
    if OFFSET:
        weight = weight + 1.0
    return (unit * weight).to(dtype).to(tl.float32)


@triton.jit
def _copy(
    into, rows, source, source_rows, row_count, source_count, key_heads, apart, source_apart, length, BLOCK: tl.constexpr
) -> None:  # fmt: skip
    """A block of one key head's positions, of a layer's keys or values."""
    part, key_head = tl.program_id(2).to(tl.int64) // key_heads, tl.program_id(2) % key_heads
    to = ((part * row_count + tl.load(rows + tl.program_id(1))) * key_heads + key_head) * apart
    origin = ((part * source_count + tl.load(source_rows + tl.program_id(1))) * key_heads + key_head) * source_apart
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(into + to + at, tl.load(source + origin + at, mask=at < length), mask=at < length)
