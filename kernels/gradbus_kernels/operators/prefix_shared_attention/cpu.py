"""Prefix-shared attention by torch's flash attention for CPUs, which also returns its log-sum-exps; short groups by batched products.

A branch takes two attentions, to its own tokens and to its root's; their log-sum-exps join the two outputs exactly (Dao et al.
2022). With the joined output and log-sum-exp, each of the two has its own backward pass. No key is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.prefix_shared_attention import short
from gradbus_kernels.operators.prefix_shared_attention.capped import CappedAttention
from gradbus_kernels.operators.prefix_shared_attention.layout import AttentionRule, PrefixLayout

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def attend_on_cpu(query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
    """See `prefix_shared_attention`. Saves its inputs, its output and a float32 per head and token; of short groups inputs and weights."""
    output: Tensor = _Attention.apply(query, key, value, rule)  # type: ignore[no-untyped-call]
    return output


@dataclass(frozen=True, slots=True)
class _Part:
    """`rows` ranges of `length` queries. Each sees one range of keys: its own tokens, or some of its root's."""

    first: int
    rows: int
    length: int
    keys: range | None = None
    """The visible tokens of the root; None if queries see their own range, causally."""
    depth: int | None = 0
    """Distance from the first key to a row's first query, in tokens; None if every query sees every key."""

    def of(self, tokens: Tensor) -> Tensor:
        """A view `[rows, heads, length, ...]` of the queries' tokens in `[N, heads, ...]`."""
        stretch = tokens[self.first : self.first + self.rows * self.length]
        return stretch.view(self.rows, self.length, *tokens.shape[1:]).transpose(1, 2)

    def of_keys(self, tokens: Tensor) -> Tensor:
        """The same for the keys' tokens."""
        if self.keys is None:
            return self.of(tokens)
        return tokens[self.keys.start : self.keys.stop].transpose(0, 1).expand(self.rows, -1, -1, -1)

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """`[queries, keys]`: 0 where a query sees a key, else -inf; None if causality alone hides keys."""
        keys = self.length if self.keys is None else len(self.keys)
        if window is None or self.depth is None or self.depth + self.length <= window:
            return None
        back = self.depth + torch.arange(self.length)[:, None] - torch.arange(keys)
        return torch.zeros(self.length, keys, dtype=dtype).masked_fill((back < 0) | (back >= window), float("-inf"))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        output, wide = torch.empty(query.shape, dtype=query.dtype), _wide(query.dtype)
        saved: list[Tensor] = []
        for block in rule.layout.short.blocks:
            heads = short.Heads.of(block, query, key, value, wide)
            found, weights = short.attend(heads, block.bias(rule.window, wide, query.shape[1], key.shape[1]), rule)
            block.scatter(found, output)
            saved += *heads, weights
        if rule.layout.runs:
            saved += query, key, value, output, _attend_long(output, query, key, value, rule)
        ctx.save_for_backward(*saved)
        ctx.rule, ctx.like = rule, (query.shape, key.shape, query.dtype)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rule: AttentionRule = ctx.rule
        of_query, of_key, dtype = ctx.like
        gradients = [torch.empty(shape, dtype=_wide(dtype)) for shape in (of_query, of_key, of_key)]
        saved = iter(ctx.saved_tensors)
        for block in rule.layout.short.blocks:
            heads, weights = short.Heads(next(saved), next(saved), next(saved)), next(saved)
            above = block.gathered(upstream, of_key[1], weights.dtype)
            for rows, gradient in zip(short.gradients(above, heads, weights, rule), gradients, strict=True):
                block.scatter(rows, gradient)
        if rule.layout.runs:
            _collect_long(gradients, upstream, tuple(saved), rule)
        return *(gradient.to(dtype) for gradient in gradients), None


def _attend_long(output: Tensor, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
    """Writes the output of all groups that are not short; returns their log-sum-exps, `[N, H]`."""
    sums = torch.empty(query.shape[:2], dtype=_wide(query.dtype))
    for part in (*_own(rule.layout), *_prefixes(rule, joined=False)):
        found, logs = _attend_part(part, (part.of(query), part.of_keys(key), part.of_keys(value)), rule)
        if part.keys is None:
            part.of(output).copy_(found)
            part.of(sums).copy_(logs)
        else:
            _join(part.of(output), part.of(sums), found, logs)
    return sums


def _collect_long(gradients: list[Tensor], upstream: Tensor, saved: tuple[Tensor, ...], rule: AttentionRule) -> None:
    """Writes the gradients of all groups that are not short; `saved` are query, key, value, output and log-sum-exps."""
    query, key, value, output, sums = saved
    wide = sums.dtype
    for part in (*_own(rule.layout), *_prefixes(rule, joined=True)):
        inputs = [
            tensor.to(wide) for tensor in (part.of(upstream), part.of(query), part.of_keys(key), part.of_keys(value), part.of(output))
        ]
        _collect(part, gradients, _part_gradients(part, (*inputs, part.of(sums)), rule))


def _attend_part(part: _Part, inputs: tuple[Tensor, ...], rule: AttentionRule) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exps; `inputs` are query, key and value."""
    if rule.softcap is not None:
        query, key, value = (tensor.to(_wide(tensor.dtype)) for tensor in inputs)
        return CappedAttention(rule.scale, rule.softcap, part.depth, rule.window).forward(query, key, value)
    mask = part.mask(rule.window, inputs[0].dtype)
    found: tuple[Tensor, Tensor] = _forward(*inputs, 0.0, part.keys is None and mask is None, attn_mask=mask, scale=rule.scale)
    return found


def _part_gradients(part: _Part, inputs: tuple[Tensor, ...], rule: AttentionRule) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; `inputs` are the output's gradient, query, key, value, output and log-sum-exps."""
    if rule.softcap is not None:
        return CappedAttention(rule.scale, rule.softcap, part.depth, rule.window).backward(*inputs)
    mask = part.mask(rule.window, inputs[0].dtype)
    causal = part.keys is None and mask is None
    found: tuple[Tensor, Tensor, Tensor] = _backward(*inputs, 0.0, causal, attn_mask=mask, scale=rule.scale)
    return found


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums."""
    return torch.promote_types(dtype, torch.float32)


def _join(output: Tensor, sums: Tensor, found: Tensor, logs: Tensor) -> None:
    """Adds attention to further keys to `output` and `sums`, in place."""
    both = torch.logaddexp(sums, logs)
    share = (logs - both).exp_().unsqueeze(-1)
    output.copy_(torch.lerp(output.to(share.dtype), found.to(share.dtype), share))
    sums.copy_(both)


def _collect(part: _Part, gradients: list[Tensor], found: tuple[Tensor, Tensor, Tensor]) -> None:
    """Writes the gradients of a part. Parts of own tokens come first and cover each token once; those of shared prompts are added."""
    of_query, *of_keys = gradients
    if part.keys is None:
        part.of(of_query).copy_(found[0])
        for gradient, more in zip(of_keys, found[1:], strict=True):
            part.of(gradient).copy_(more)
        return
    part.of(of_query).add_(found[0])
    for gradient, more in zip(of_keys, found[1:], strict=True):
        gradient[part.keys.start : part.keys.stop].transpose(0, 1).add_(more.sum(0))


def _own(layout: PrefixLayout) -> Iterator[_Part]:
    """Each segment's attention to itself, short groups left out; neighbours of equal length are rows of one part."""
    return (_Part(*run) for run in layout.runs)


def _prefixes(rule: AttentionRule, *, joined: bool) -> Iterator[_Part]:
    """Each branch's attention to its root, short groups left out; neighbours of one root and equal length are rows of one part.

    `joined`: neighbours of one root are a single row, for any lengths. This is faster, but the bits of a row may then depend on its
    neighbours. A branch whose window hides part of its root is a part by itself: its first queries, and the last keys of the root.
    """

    layout, window = rule.layout, rule.window
    if not layout.has_long_branches:
        return

    is_short = layout.short.segments.tolist()

    def alike(segment: int) -> tuple[int | None, int, int]:
        if is_short[segment]:
            return None, 0, -1
        length = layout.lengths[segment]
        if window is not None and layout.depths[segment] + length > window:
            return layout.parents[segment], length, segment
        return layout.parents[segment], 0 if joined else length, -1

    for (root, _, alone), members in groupby(_filled(layout), key=alike):
        run = list(members)
        first, queries = layout.offsets[run[0]], sum(layout.lengths[segment] for segment in run)
        if root is None or not layout.lengths[root]:
            continue
        seen = layout.lengths[root]
        if alone >= 0:
            reach = (window or 1) - 1
            seen, queries = min(seen, reach), min(queries, reach)
        keys = range(layout.offsets[root + 1] - seen, layout.offsets[root + 1])
        rows = 1 if joined else len(run)
        if seen:
            yield _Part(first, rows, queries // rows, keys, seen if alone >= 0 else None)


def _filled(layout: PrefixLayout) -> Iterator[int]:
    """Segments that are not empty; each begins at the end of the previous one."""
    return (segment for segment, length in enumerate(layout.lengths) if length)
