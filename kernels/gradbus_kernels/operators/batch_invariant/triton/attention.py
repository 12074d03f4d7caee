"""Triton kernel of `invariant_attention`'s forward: keys in blocks of one size from position 0, in order, softmax online.

A block that a query does not see multiplies its sums by exp(0) and adds exactly 0, so the longer range of keys that a program
visits for other queries changes nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import INTERPRETED
from gradbus_kernels.operators.base.block_sizes import INVARIANT_ATTENTION as LAUNCH


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """See `invariant_attention`."""
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    (rows, heads, count, size), (key_heads, length) = query.shape, key.shape[1:3]
    out = torch.empty_like(query)
    if out.numel():
        _attention[rows * heads, triton.cdiv(count, LAUNCH.queries)](
            query,
            key,
            value,
            out,
            scale,
            count,
            length,
            size,
            heads // key_heads,
            QUERIES=LAUNCH.queries,
            KEYS=LAUNCH.keys,
            SIZE=max(16, triton.next_power_of_2(size)),
            WIDEN=INTERPRETED,
            num_warps=LAUNCH.warps,
            num_stages=LAUNCH.stages,
        )
    return out


@triton.jit
def _attention(
    query, key, value, out, scale, count, length, size, shared,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    head, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = number * QUERIES + tl.arange(0, QUERIES)
    column = tl.arange(0, SIZE)
    query_offsets = (head * count + row)[:, None] * size + column[None, :]
    inside = (row < count)[:, None] & (column < size)[None, :]
    queries = tl.load(query + query_offsets, inside, 0.0)
    if WIDEN:
        queries = queries.to(tl.float32)
    seen = row + length - count
    base = head // shared * length * size
    peak = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, SIZE), tl.float32)
    for start in range(0, min(length, (number + 1) * QUERIES + length - count), KEYS):
        position = start + tl.arange(0, KEYS)
        valid = (position < length)[:, None] & (column < size)[None, :]
        offsets = base + position[:, None] * size + column[None, :]
        keys, values = tl.load(key + offsets, valid, 0.0), tl.load(value + offsets, valid, 0.0)
        if WIDEN:
            keys, values = keys.to(tl.float32), values.to(tl.float32)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        visible = position[None, :] <= seen[:, None]
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        kept = tl.exp(peak - higher)
        total = total * kept + tl.sum(weights, 1)
        sums = sums * kept[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        peak = higher
    tl.store(out + query_offsets, (sums / total[:, None]).to(out.dtype.element_ty), inside)
