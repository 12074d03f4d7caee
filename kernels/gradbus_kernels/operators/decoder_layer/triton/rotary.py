"""Triton kernel of `rotary`: one pass turns queries and keys, and one turns their gradients back beside those of the values."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.block_sizes import rotary_tokens


def rotary(qkv: Tensor, cos: Tensor, sin: Tensor, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value; see `rotary` above."""
    turned: tuple[Tensor, Tensor, Tensor] = _Rotary.apply(qkv, cos, sin, key_heads)
    return turned


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        query, key, value = qkv[:, : -2 * key_heads], qkv[:, -2 * key_heads : -key_heads], qkv[:, -key_heads:]
        turned = qkv.new_empty(len(qkv), qkv.shape[1] - key_heads, qkv.shape[2])
        _turn(query, key, None, (cos, sin), turned, 1.0)
        return turned[:, :-key_heads], turned[:, -key_heads:], value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        out = query.new_empty(len(query), query.shape[1] + 2 * key.shape[1], query.shape[2])
        _turn(query, key, value, (cos, sin), out, -1.0)
        return out, None, None, None


def _turn(query: Tensor, key: Tensor, value: Tensor | None, turn: tuple[Tensor, Tensor], out: Tensor, direction: float) -> None:
    """Query and key turned, and value as it is unless it is None, side by side into `out`, which is contiguous."""
    query, key, value = dense(query), dense(key), None if value is None else dense(value)
    cos, sin = turn
    tokens, heads, size = out.shape
    columns = triton.next_power_of_2(triton.cdiv(size, 2))
    tile = rotary_tokens(columns)
    if out.numel():
        strides = [part.stride(dim) for part in (query, key, key if value is None else value) for dim in (0, 1)]
        turn_strides = cos.stride(0), cos.stride(1) if cos.shape[1] > 1 else 0
        _rotary[heads, triton.cdiv(tokens, tile.rows)](
            query, key, value, cos, sin, out, *strides, *turn_strides, direction, tokens, query.shape[1], query.shape[1] + key.shape[1],
            HALF=size // 2, TOKENS=tile.rows, COLUMNS=columns, num_warps=tile.warps,
        )  # fmt: skip


def dense(heads: Tensor) -> Tensor:
    """The heads with a last stride of 1."""
    return heads if heads.stride(2) == 1 else heads.contiguous()


@triton.jit
def _rotary(
    query, key, value, cos, sin, out, q_n, q_h, k_n, k_h, v_n, v_h, turn_n, turn_h, direction, tokens, queries, turned,
    HALF: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One head of some tokens. Each pair (a, b) times (cos, sin): (a cos - b sin, b cos + a sin); direction -1 turns it back."""
    head = tl.program_id(0)
    token, pair = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, COLUMNS)
    inside = (token < tokens)[:, None] & (pair < HALF)[None]
    at, step = query + head * q_h, q_n
    if head >= queries:
        at, step = key + (head - queries) * k_h, k_n
    if value is not None:  # noqa: SIM102 -- the outer one is settled when the kernel is compiled
        if head >= turned:
            at, step = value + (head - turned) * v_h, v_n
    place = token.to(tl.int64)[:, None]
    first = tl.load(at + place * step + pair[None], inside, 0.0)
    second = tl.load(at + place * step + pair[None] + HALF, inside, 0.0)
    to = out + (place * tl.num_programs(0) + head) * (2 * HALF) + pair[None]
    if head < turned:
        by = head * turn_h + place * turn_n + pair[None]
        rise = tl.load(sin + by + HALF, inside, 0.0).to(tl.float32) * direction
        first, second = turned_pair(first.to(tl.float32), second.to(tl.float32), tl.load(cos + by, inside, 0.0), rise, out)
    tl.store(to, first, inside)
    tl.store(to + HALF, second, inside)


@triton.jit
def turned_pair(a, b, cos, sin, out) -> tuple[tl.tensor, tl.tensor]:
    """(a cos - b sin, b cos + a sin) of float32 a and b, in the dtype of `out`. Each product is rounded, as torch's are, before the sum."""
    narrow = out.dtype.element_ty
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    first = (a * cos).to(narrow).to(tl.float32) - (b * sin).to(narrow).to(tl.float32)
    second = (b * cos).to(narrow).to(tl.float32) + (a * sin).to(narrow).to(tl.float32)
    return first.to(narrow), second.to(narrow)
