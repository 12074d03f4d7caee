"""The kernels themselves. Each program finds its block and its ranges in the tables; see `tables`."""

from __future__ import annotations

import triton
import triton.language as tl

from gradbus_kernels.operators.base.triton import tanh


@triton.jit
def _tile(base, tokens, last, stride, HEAD: tl.constexpr, DIMS: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr):
    """Rows `tokens` of one head, [tokens, DIMS]; 0 from dimension HEAD on and, with CUT, from token `last` on."""
    dims = tl.arange(0, DIMS)
    pointers = base + tokens.to(tl.int64)[:, None] * stride + dims[None]
    if CUT:
        tile = tl.load(pointers, mask=(tokens < last)[:, None] & (dims < HEAD)[None], other=0.0)
    elif HEAD < DIMS:
        tile = tl.load(pointers, mask=(dims < HEAD)[None], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile.to(tl.float32) if WIDE else tile


@triton.jit
def _scores(left, right, scale, SOFTCAP: tl.constexpr):
    """Scores to the base 2."""
    factor = scale / SOFTCAP if SOFTCAP > 0 else scale * 1.4426950408889634
    scores = tl.dot(left, tl.trans(right), input_precision="ieee") * factor
    if SOFTCAP > 0:
        scores = tanh(scores) * (SOFTCAP * 1.4426950408889634)
    return scores


@triton.jit
def _seen(scores, back, valid, WINDOW: tl.constexpr):
    """The scores; -inf where a query does not see a key. `back` is the distance from key to query."""
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
def _store(to, rows, valid, head, heads, values, HEAD: tl.constexpr, DIMS: tl.constexpr):
    """Stores `values` into a contiguous [N, heads, HEAD]."""
    dims = tl.arange(0, DIMS)
    pointers = to + (rows.to(tl.int64)[:, None] * heads + head) * HEAD + dims[None]
    tl.store(pointers, values.to(to.dtype.element_ty), mask=valid[:, None] & (dims < HEAD)[None])


@triton.jit
def _scored_keys(
    q, positions, keys_at, values_at, first, end, origin, scale, k_n, v_n,
    HEAD: tl.constexpr, DIMS: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A block of keys from `first` on, its values, and the scores of `q` for it."""
    tokens = first + tl.arange(0, KEYS)
    k = _tile(keys_at, tokens, end, k_n, HEAD, DIMS, MASKED, WIDE)
    v = _tile(values_at, tokens, end, v_n, HEAD, DIMS, MASKED, WIDE)
    scores = _scores(q, k, scale, SOFTCAP)
    if MASKED:
        scores = _seen(scores, positions[:, None] - (tokens - origin)[None], (tokens < end)[None], WINDOW)
    return k, v, scores


@triton.jit
def _attend(
    acc, total, top, q, positions, keys_at, values_at, part, scale, k_n, v_n,
    HEAD: tl.constexpr, DIMS: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Continues the running softmax (output, sum, maximum) of `q` over the keys of the range at `part`."""
    end, origin = tl.load(part + 1), tl.load(part + 2)
    for first in range(tl.load(part), end, KEYS):
        _, v, scores = _scored_keys(
            q, positions, keys_at, values_at, first, end, origin, scale, k_n, v_n, HEAD, DIMS, KEYS, MASKED, WINDOW, SOFTCAP, WIDE
        )
        higher = tl.maximum(top, tl.max(scores, 1))
        # Without a window the first key of a range is seen by all queries.
        level = tl.where(higher == -float("inf"), 0.0, higher) if WINDOW > 0 else higher
        weights = tl.exp2(scores - level[:, None])
        faded = tl.exp2(top - level)
        total = total * faded + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * faded[:, None], input_precision="ieee")
        top = higher
    return acc, total, top


@triton.jit
def _forward(
    query, key, value, output, sums, blocks, ranges, q_n, q_h, k_n, k_h, v_n, v_h, tokens, scale,
    GROUP: tl.constexpr, HEAD: tl.constexpr, DIMS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    head, block = tl.program_id(0).to(tl.int64), blocks + tl.program_id(1) * 6
    first, end, position = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    full, masked, behind = tl.load(block + 3), tl.load(block + 4), tl.load(block + 5)
    rows = first + tl.arange(0, QUERIES)
    positions = position + tl.arange(0, QUERIES)
    q = _tile(query + head * q_h, rows, end, q_n, HEAD, DIMS, True, WIDE)
    keys_at, values_at = key + head // GROUP * k_h, value + head // GROUP * v_h
    acc = tl.full([QUERIES, DIMS], 0.0, tl.float32)
    total = tl.full([QUERIES], 0.0, tl.float32)
    top = tl.full([QUERIES], -float("inf"), tl.float32)
    for number in range(full, masked):
        acc, total, top = _attend(
            acc, total, top, q, positions, keys_at, values_at, ranges + number * 3, scale, k_n, v_n,
            HEAD, DIMS, KEYS, False, WINDOW, SOFTCAP, WIDE,
        )  # fmt: skip
    for number in range(masked, behind):
        acc, total, top = _attend(
            acc, total, top, q, positions, keys_at, values_at, ranges + number * 3, scale, k_n, v_n,
            HEAD, DIMS, KEYS, True, WINDOW, SOFTCAP, WIDE,
        )  # fmt: skip
    valid = rows < end
    total = tl.where(valid, total, 1.0)
    _store(output, rows, valid, head, tl.num_programs(0), acc / total[:, None], HEAD, DIMS)
    tl.store(sums + head * tokens + rows, top + tl.log2(total), mask=valid)


@triton.jit
def _query_gradient(
    acc, q, up, level, shift, positions, keys_at, values_at, part, scale, k_n, v_n,
    HEAD: tl.constexpr, DIMS: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Adds the part of the keys of the range at `part` to the gradient of `q`, before the scale."""
    end, origin = tl.load(part + 1), tl.load(part + 2)
    for first in range(tl.load(part), end, KEYS):
        k, v, scores = _scored_keys(
            q, positions, keys_at, values_at, first, end, origin, scale, k_n, v_n, HEAD, DIMS, KEYS, MASKED, WINDOW, SOFTCAP, WIDE
        )
        weights = tl.exp2(scores - level[:, None])
        change = weights * (tl.dot(up, tl.trans(v), input_precision="ieee") - shift[:, None])
        change = _before_softcap(change, scores, SOFTCAP)
        acc = tl.dot(change.to(k.dtype), k, acc, input_precision="ieee")
    return acc


@triton.jit
def _backward_query(
    query, key, value, output, upstream, of_query, sums, shifts, blocks, ranges, q_n, q_h, k_n, k_h, v_n, v_h, tokens, scale,
    GROUP: tl.constexpr, HEAD: tl.constexpr, DIMS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries. Also stores into `shifts` the sum of output times its gradient, for each head and token."""
    head, block = tl.program_id(0).to(tl.int64), blocks + tl.program_id(1) * 6
    heads = tl.num_programs(0)
    first, end, position = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    full, masked, behind = tl.load(block + 3), tl.load(block + 4), tl.load(block + 5)
    rows = first + tl.arange(0, QUERIES)
    valid = rows < end
    positions = position + tl.arange(0, QUERIES)
    q = _tile(query + head * q_h, rows, end, q_n, HEAD, DIMS, True, WIDE)
    up = _tile(upstream + head * HEAD, rows, end, heads * HEAD, HEAD, DIMS, True, WIDE)
    out = _tile(output + head * HEAD, rows, end, heads * HEAD, HEAD, DIMS, True, WIDE)
    shift = tl.sum(up.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(shifts + head * tokens + rows, shift, mask=valid)
    level = tl.load(sums + head * tokens + rows, mask=valid, other=0.0)
    keys_at, values_at = key + head // GROUP * k_h, value + head // GROUP * v_h
    acc = tl.full([QUERIES, DIMS], 0.0, tl.float32)
    for number in range(full, masked):
        acc = _query_gradient(
            acc, q, up, level, shift, positions, keys_at, values_at, ranges + number * 3, scale, k_n, v_n,
            HEAD, DIMS, KEYS, False, WINDOW, SOFTCAP, WIDE,
        )  # fmt: skip
    for number in range(masked, behind):
        acc = _query_gradient(
            acc, q, up, level, shift, positions, keys_at, values_at, ranges + number * 3, scale, k_n, v_n,
            HEAD, DIMS, KEYS, True, WINDOW, SOFTCAP, WIDE,
        )  # fmt: skip
    _store(of_query, rows, valid, head, heads, acc * scale, HEAD, DIMS)


@triton.jit
def _key_gradient(
    of_key, of_value, k, v, positions, queries_at, upstream_at, sums_at, shifts_at, part, scale, q_n, u_n,
    HEAD: tl.constexpr, DIMS: tl.constexpr, QUERIES: tl.constexpr, MASKED: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Adds the part of the queries of the range at `part` to the gradients of `k`, before the scale, and `v`.

    Scores are [keys, queries]: so all products have a left factor that is in registers or lies as it was loaded.
    """
    end, origin = tl.load(part + 1), tl.load(part + 2)
    for first in range(tl.load(part), end, QUERIES):
        rows = first + tl.arange(0, QUERIES)
        q = _tile(queries_at, rows, end, q_n, HEAD, DIMS, MASKED, WIDE)
        up = _tile(upstream_at, rows, end, u_n, HEAD, DIMS, MASKED, WIDE)
        scores = _scores(k, q, scale, SOFTCAP)
        if MASKED:
            level = tl.load(sums_at + rows, mask=rows < end, other=0.0)
            shift = tl.load(shifts_at + rows, mask=rows < end, other=0.0)
            scores = _seen(scores, (rows - origin)[None] - positions[:, None], (rows < end)[None], WINDOW)
        else:
            level = tl.load(sums_at + rows)
            shift = tl.load(shifts_at + rows)
        weights = tl.exp2(scores - level[None])
        of_value = tl.dot(weights.to(up.dtype), up, of_value, input_precision="ieee")
        change = weights * (tl.dot(v, tl.trans(up), input_precision="ieee") - shift[None])
        change = _before_softcap(change, scores, SOFTCAP)
        of_key = tl.dot(change.to(q.dtype), q, of_key, input_precision="ieee")
    return of_key, of_value


@triton.jit
def _backward_key(
    query, key, value, upstream, of_key, of_value, parts, sums, shifts, blocks, ranges, q_n, q_h, k_n, k_h, v_n, v_h, tokens, scale,
    GROUP: tl.constexpr, HEAD: tl.constexpr, DIMS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values, of a block or of one of its parts.

    Keys beyond the segment are not masked: they are rows of the scores, which stay apart and are not stored.
    """
    kv_head, block = tl.program_id(0).to(tl.int64), blocks + tl.program_id(1) * 9
    kv_heads = tl.num_programs(0)
    first, end, begin = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    full, masked, behind = tl.load(block + 3), tl.load(block + 4), tl.load(block + 5)
    columns = first + tl.arange(0, KEYS)
    k = _tile(key + kv_head * k_h, columns, end, k_n, HEAD, DIMS, True, WIDE)
    v = _tile(value + kv_head * v_h, columns, end, v_n, HEAD, DIMS, True, WIDE)
    key_sum, value_sum = tl.full([KEYS, DIMS], 0.0, tl.float32), tl.full([KEYS, DIMS], 0.0, tl.float32)
    u_n = kv_heads * GROUP * HEAD
    for member in range(tl.load(block + 6), tl.load(block + 7)):
        head = kv_head * GROUP + member
        queries_at, upstream_at = query + head * q_h, upstream + head * HEAD
        sums_at, shifts_at = sums + head * tokens, shifts + head * tokens
        for number in range(full, masked):
            key_sum, value_sum = _key_gradient(
                key_sum, value_sum, k, v, columns - begin, queries_at, upstream_at, sums_at, shifts_at, ranges + number * 3,
                scale, q_n, u_n, HEAD, DIMS, QUERIES, False, WINDOW, SOFTCAP, WIDE,
            )  # fmt: skip
        for number in range(masked, behind):
            key_sum, value_sum = _key_gradient(
                key_sum, value_sum, k, v, columns - begin, queries_at, upstream_at, sums_at, shifts_at, ranges + number * 3,
                scale, q_n, u_n, HEAD, DIMS, QUERIES, True, WINDOW, SOFTCAP, WIDE,
            )  # fmt: skip
    part, valid = tl.load(block + 8), columns < end
    if part < 0:
        _store(of_key, columns, valid, kv_head, kv_heads, key_sum * scale, HEAD, DIMS)
        _store(of_value, columns, valid, kv_head, kv_heads, value_sum, HEAD, DIMS)
    else:
        rows = part * KEYS + tl.arange(0, KEYS)
        everywhere = tl.full([KEYS], True, tl.int1)
        _store(parts, rows, everywhere, kv_head * 2, kv_heads * 2, key_sum * scale, HEAD, DIMS)
        _store(parts, rows, everywhere, kv_head * 2 + 1, kv_heads * 2, value_sum, HEAD, DIMS)


@triton.jit
def _add_parts(parts, of_key, of_value, blocks, HEAD: tl.constexpr, DIMS: tl.constexpr, KEYS: tl.constexpr):
    """Adds up the sums of a block's parts, in order: those of keys, and in the second half of the programs those of values."""
    number, block = tl.program_id(0).to(tl.int64), blocks + tl.program_id(1) * 4
    kv_heads = tl.num_programs(0) // 2
    columns, valid = tl.load(block) + tl.arange(0, KEYS), tl.load(block) + tl.arange(0, KEYS) < tl.load(block + 1)
    total = tl.full([KEYS, DIMS], 0.0, tl.float32)
    for part in range(tl.load(block + 2), tl.load(block + 3)):
        rows = part * KEYS + tl.arange(0, KEYS)
        total += _tile(parts + number * HEAD, rows, 0, kv_heads * 2 * HEAD, HEAD, DIMS, False, True)
    if number % 2 == 0:
        _store(of_key, columns, valid, number // 2, kv_heads, total, HEAD, DIMS)
    else:
        _store(of_value, columns, valid, number // 2, kv_heads, total, HEAD, DIMS)
