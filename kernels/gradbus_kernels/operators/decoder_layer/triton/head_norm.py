"""Triton kernels of `normed_rotary`; the gradients of the weights are added up as those of `rms_norm`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.block_sizes import rotary_tokens
from gradbus_kernels.operators.decoder_layer.triton.norm import add_sums, shares
from gradbus_kernels.operators.decoder_layer.triton.rotary import dense, turned_pair


def normed_rotary(
    qkv: Tensor, norms: tuple[Tensor, Tensor, float], rotation: tuple[Tensor, Tensor], key_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value; see `normed_rotary` above. `norms`: the weights of queries and keys, and epsilon."""
    query, key, eps = norms
    found: tuple[Tensor, Tensor, Tensor] = _NormedRotary.apply(qkv, query, key, (*rotation, eps, key_heads))
    return found


class _NormedRotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, query: Tensor, key: Tensor, how: tuple[Tensor, Tensor, float, int]) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin, eps, key_heads = how
        cos, sin, qkv, query, key = cos.contiguous(), sin.contiguous(), qkv.contiguous(), query.contiguous(), key.contiguous()
        tokens, heads, size = qkv.shape
        out, inverse = (
            qkv.new_empty(tokens, heads - key_heads, *rest, dtype=dtype) for rest, dtype in (((size,), qkv.dtype), ((), torch.float32))
        )
        ctx.save_for_backward(qkv, query, key, cos, sin, inverse)
        if out.numel():
            tile = rotary_tokens(_columns(size))
            grid = heads - key_heads, triton.cdiv(tokens, tile.rows)
            _normed_rotary_forward[grid](
                qkv, query, key, cos, sin, out, inverse, cos.stride(0), _head_stride(cos), tokens, heads, heads - 2 * key_heads, eps,
                HALF=size // 2, TOKENS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
            )  # fmt: skip
        return out[:, :-key_heads], out[:, -key_heads:], qkv[:, -key_heads:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        qkv, query_weight, key_weight, cos, sin, inverse = ctx.saved_tensors
        out, of_query, of_key = torch.empty_like(qkv), torch.zeros_like(query_weight), torch.zeros_like(key_weight)
        if not out.numel():
            return out, of_query, of_key, None
        above = dense(query), dense(key), dense(value)
        tokens, heads, size = qkv.shape
        queries, turned, tile = query.shape[1], heads - value.shape[1], rotary_tokens(_columns(size))
        steps, programs = shares(tokens, tile)
        sums = qkv.new_empty(turned * programs, size, dtype=torch.float32)
        strides = [part.stride(dim) for part in above for dim in (0, 1)]
        _normed_rotary_backward[heads, programs](
            *above, qkv, query_weight, key_weight, cos, sin, inverse, out, sums, *strides, cos.stride(0), _head_stride(cos),
            tokens, queries, turned, steps, HALF=size // 2, TOKENS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
        add_sums(sums[: queries * programs], of_query)
        add_sums(sums[queries * programs :], of_key)
        return out, of_query, of_key, None


def _columns(size: int) -> int:
    return int(triton.next_power_of_2(triton.cdiv(size, 2)))


def _head_stride(turn: Tensor) -> int:
    return turn.stride(1) if turn.shape[1] > 1 else 0


@triton.jit
def _normed_rotary_forward(
    qkv, query, key, cos, sin, out, inverses, turn_n, turn_h, tokens, heads, queries, eps,
    HALF: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    head, turned = tl.program_id(0), tl.num_programs(0)
    token, pair = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, COLUMNS)
    inside = (token < tokens)[:, None] & (pair < HALF)[None]
    weight = query
    if head >= queries:
        weight = key
    row = token.to(tl.int64)
    at = qkv + (row * heads + head)[:, None] * (2 * HALF) + pair[None]
    a, b = tl.load(at, inside, 0.0).to(tl.float32), tl.load(at + HALF, inside, 0.0).to(tl.float32)
    inverse = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)
    tl.store(inverses + row * turned + head, inverse, token < tokens)
    narrow = out.dtype.element_ty
    of_a = tl.load(weight + pair, pair < HALF, 0.0).to(tl.float32)[None]
    of_b = tl.load(weight + HALF + pair, pair < HALF, 0.0).to(tl.float32)[None]
    # Rounded where `rms_norm` and `rotary` round.
    a = ((a * inverse[:, None]).to(narrow).to(tl.float32) * of_a).to(narrow).to(tl.float32)
    b = ((b * inverse[:, None]).to(narrow).to(tl.float32) * of_b).to(narrow).to(tl.float32)
    by = row[:, None] * turn_n + head * turn_h + pair[None]
    a, b = turned_pair(a, b, tl.load(cos + by, inside, 0.0), tl.load(sin + by + HALF, inside, 0.0), out)
    to = out + (row * turned + head)[:, None] * (2 * HALF) + pair[None]
    tl.store(to, a, inside)
    tl.store(to + HALF, b, inside)


@triton.jit
def _normed_rotary_backward(
    of_queries, of_keys, of_values, qkv, query, key, cos, sin, inverses, out, sums, q_n, q_h, k_n, k_h, v_n, v_h, turn_n, turn_h,
    tokens, queries, turned, steps, HALF: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of some tokens of one head, turned back and then through the norm, as in `rms_norm`; those of values as they are."""
    head, share, pair = tl.program_id(0), tl.program_id(1), tl.arange(0, COLUMNS)
    above, step, weight = of_queries + head * q_h, q_n, query
    if head >= queries:
        above, step, weight = of_keys + (head - queries) * k_h, k_n, key
    if head >= turned:
        above, step = of_values + (head - turned) * v_h, v_n
    of_a = tl.load(weight + pair, pair < HALF, 0.0).to(tl.float32)[None]
    of_b = tl.load(weight + HALF + pair, pair < HALF, 0.0).to(tl.float32)[None]
    total_a, total_b = tl.zeros((TOKENS, COLUMNS), tl.float32), tl.zeros((TOKENS, COLUMNS), tl.float32)
    for number in range(share * steps, share * steps + steps):
        token = number * TOKENS + tl.arange(0, TOKENS)
        inside, row = (token < tokens)[:, None] & (pair < HALF)[None], token.to(tl.int64)
        first = tl.load(above + row[:, None] * step + pair[None], inside, 0.0)
        second = tl.load(above + row[:, None] * step + pair[None] + HALF, inside, 0.0)
        place = (row * tl.num_programs(0) + head)[:, None] * (2 * HALF) + pair[None]
        if head < turned:
            by = row[:, None] * turn_n + head * turn_h + pair[None]
            level, rise = tl.load(cos + by, inside, 0.0), tl.load(sin + by + HALF, inside, 0.0)
            first, second = turned_pair(first.to(tl.float32), second.to(tl.float32), level, -rise.to(tl.float32), out)
            a, b = tl.load(qkv + place, inside, 0.0).to(tl.float32), tl.load(qkv + place + HALF, inside, 0.0).to(tl.float32)
            inverse = tl.load(inverses + row * turned + head, token < tokens, 0.0)[:, None]
            up_a, up_b = first.to(tl.float32), second.to(tl.float32)
            both_a, both_b = a * up_a, b * up_b
            pull = tl.sum(both_a * of_a + both_b * of_b, 1)[:, None] * (inverse * inverse * inverse) / (2 * HALF)
            first = (up_a * of_a * inverse - a * pull).to(out.dtype.element_ty)
            second = (up_b * of_b * inverse - b * pull).to(out.dtype.element_ty)
            total_a += both_a * inverse
            total_b += both_b * inverse
        tl.store(out + place, first, inside)
        tl.store(out + place + HALF, second, inside)
    if head < turned:
        to = sums + (head * tl.num_programs(1) + share) * (2 * HALF) + pair
        tl.store(to, tl.sum(total_a, 0), pair < HALF)
        tl.store(to + HALF, tl.sum(total_b, 0), pair < HALF)
