"""Causal attention over packed sequences that share prompts: a response sees itself and its prompt, which is stored once.

For a token i, with V(i) the tokens of its prompt and of its own segment up to itself:
out_i = sum over j in V(i) of softmax_j(scale * q_i . k_j) v_j. A softcap c puts c * tanh(x / c) in the place of a score x.
"""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_floats, require
from gradbus_kernels.operators.base.dispatch import choose
from gradbus_kernels.operators.base.softcap import Softcapped, softcapped
from gradbus_kernels.operators.prefix_shared_attention.cpu import attend_on_cpu
from gradbus_kernels.operators.prefix_shared_attention.layout import AttentionRule, PrefixLayout

_LARGEST_HEAD = 256


def prefix_shared_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: PrefixLayout, scale: float | Softcapped | None = None, window: int | None = None
) -> Tensor:
    """Attention of each token to the tokens before it in its sequence, `[N, H, D]` in the query's dtype; differentiable once.

    query: `[N, H, D]`, key and value: `[N, K, D]` with K dividing H (grouped-query heads, Ainslie et al. 2023), any
    strides (a last stride other than 1 costs a copy), D at most 256. `layout` has N tokens. `scale` defaults to 1/sqrt(D); `Softcapped`
    adds a bound of the scaled scores. `window`, if given, is the number of tokens, itself included, that a token sees back in its
    sequence, which begins with its prompt.

    Sums are float32 at least. On a CPU, without a softcap, the bits of a segment's output depend on the segment and its root alone, except
    in a group of at most 96 tokens. Raises ValueError, which names the argument, for wrong shapes, dtypes or devices.
    """
    _check(query, key, value, layout, window)
    bounded = _bounded(query, scale)
    require(isfinite(bounded.value), "scale", f"is {bounded.value}; pass a finite number")
    bounded.check("scale")
    chosen = choose("prefix_shared_attention", query, ("reference", "cpu", "triton"))
    if chosen == "reference":
        return prefix_shared_attention_reference(query, key, value, layout, bounded, window)
    query, key, value = (_dense(tensor) for tensor in (query, key, value))
    rule = AttentionRule(layout, bounded.value, window, bounded.softcap)
    if chosen == "cpu":
        return attend_on_cpu(query, key, value, rule)
    from gradbus_kernels.operators.prefix_shared_attention.triton import attend_on_gpu  # noqa: PLC0415 - needs Triton

    return attend_on_gpu(query, key, value, rule)


def prefix_shared_attention_reference(
    query: Tensor, key: Tensor, value: Tensor, layout: PrefixLayout, scale: float | Softcapped | None = None, window: int | None = None
) -> Tensor:
    """The same by its definition: a softmax over all N tokens with a mask. Needs memory for `[H, N, N]`."""
    bounded = _bounded(query, scale)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = softcapped(torch.einsum("ihd,jhd->hij", query, key) * bounded.value, bounded.softcap)
    weights = scores.masked_fill(~layout.visible(window, query.device), float("-inf")).softmax(dim=-1)
    return torch.einsum("hij,jhd->ihd", weights, value)


def _bounded(query: Tensor, scale: float | Softcapped | None) -> Softcapped:
    return Softcapped.of(query.shape[2] ** -0.5 if scale is None else scale)


def _dense(tensor: Tensor) -> Tensor:
    """The tensor with a last stride of 1, which the kernels assume."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def _check(query: Tensor, key: Tensor, value: Tensor, layout: PrefixLayout, window: int | None) -> None:
    check_floats("query", query, (layout.tokens, None, None))
    check_floats("key", key, (layout.tokens, None, query.shape[2]), query)
    check_floats("value", value, (layout.tokens, key.shape[1], query.shape[2]), query)
    require(key.dtype == query.dtype, "key", f"is {key.dtype}; pass {query.dtype}, as the query is")
    require(value.dtype == query.dtype, "value", f"is {value.dtype}; pass {query.dtype}, as the query is")
    heads, kv_heads = query.shape[1], key.shape[1]
    divides = kv_heads > 0 and heads % kv_heads == 0
    require(divides, "key", f"has {kv_heads} heads; pass a number that divides the {heads} of the query")
    require(0 < query.shape[2] <= _LARGEST_HEAD, "query", f"has heads of {query.shape[2]}; pass 1 to {_LARGEST_HEAD}")
    require(window is None or window > 0, "window", f"is {window}; pass at least 1, or None for no window")
