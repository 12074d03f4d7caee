"""Triton kernels of `prefix_shared_attention`: flash attention (Dao et al. 2022, Dao 2023) over two ranges of keys.

A block of queries runs over its root's keys and its own with one running softmax, so no outputs are joined later. A block of keys sums
gradients from its own segment's queries and, in a root, from the queries of its branches, in order; where they are many, parts of them in
programs of their own, whose sums a last kernel adds in order. There are no atomics, and the bits are the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.block_sizes import INTERPRETED, AttentionBlocks
from gradbus_kernels.operators.base.block_sizes import prefix_shared_attention as launch
from gradbus_kernels.operators.prefix_shared_attention.layout import AttentionRule
from gradbus_kernels.operators.prefix_shared_attention.tables import key_tables, query_tables
from gradbus_kernels.operators.prefix_shared_attention.triton_kernels import _add_parts, _backward_key, _backward_query, _forward


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
    tokens, heads, head_dim = query.shape
    output = query.new_empty(query.shape)
    sums = query.new_empty(heads, tokens, dtype=torch.float32)
    table = launch(head_dim, query.itemsize).forward
    blocks, ranges = query_tables(rule.layout, table, rule.window, query.device)
    if len(blocks):
        how = _launch_arguments(query, key, rule, table)
        _forward[heads, len(blocks)](query, key, value, output, sums, blocks, ranges, *_strides(query, key, value), tokens, **how)
    return output, sums


def _gradients(saved: Sequence[Tensor], upstream: Tensor, rule: AttentionRule) -> tuple[Tensor, ...]:
    """Those of query, key and value, and the sums of the output times its gradient, float32 `[H, N]`."""
    query, key, value, output, sums = saved
    tokens, heads, head_dim = query.shape
    upstream = upstream.contiguous()
    of_query, shift = query.new_empty(query.shape), torch.empty_like(sums)
    table, strides = launch(head_dim, query.itemsize).backward_query, _strides(query, key, value)
    blocks, ranges = query_tables(rule.layout, table, rule.window, query.device)
    if len(blocks):
        how = _launch_arguments(query, key, rule, table)
        _backward_query[heads, len(blocks)](
            query, key, value, output, upstream, of_query, sums, shift, blocks, ranges, *strides, tokens, **how
        )
    return of_query, *_gradients_of_keys((query, key, value, sums, shift), upstream, rule), shift


def _gradients_of_keys(given: Sequence[Tensor], upstream: Tensor, rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """The gradients of keys and values; `given`: query, key, value, log-sum-exps, and sums of the output times its gradient."""
    query, key, value, sums, shift = given
    of_key, of_value = key.new_empty(key.shape), value.new_empty(value.shape)
    kv_heads, head_dim = key.shape[1:]
    table = launch(head_dim, query.itemsize).backward_key
    tables = key_tables(rule.layout, table, query.shape[1] // kv_heads, rule.window, query.device)
    if not len(tables.blocks):
        return of_key, of_value
    parts = query.new_empty(tables.parts * table.keys, kv_heads, 2, head_dim, dtype=torch.float32)
    how, strides = _launch_arguments(query, key, rule, table), _strides(query, key, value)
    _backward_key[kv_heads, len(tables.blocks)](
        query, key, value, upstream, of_key, of_value, parts, sums, shift, tables.blocks, tables.ranges, *strides, len(query), **how
    )
    if tables.parts:
        sizes = {name: how[name] for name in ("HEAD", "DIMS", "KEYS")}
        _add_parts[kv_heads * 2, len(tables.sums)](parts, of_key, of_value, tables.sums, **sizes)
    return of_key, of_value


def _strides(*tensors: Tensor) -> list[int]:
    return [tensor.stride(dim) for tensor in tensors for dim in (0, 1)]


def _launch_arguments(query: Tensor, key: Tensor, rule: AttentionRule, table: AttentionBlocks) -> dict[str, Any]:
    """Arguments that the three kernels share."""
    head_dim = query.shape[2]
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
