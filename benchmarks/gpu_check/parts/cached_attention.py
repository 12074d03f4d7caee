"""The operators of decoding against float64: attention over a cache and the rotary embedding into it. No neighbour changes a row's bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from gpu_check.context import Context
from gpu_check.timing import seconds
from gradbus_kernels import operators as ops

_TOLERANCE: Final = 1e-5
_CALLS: Final = 8


class _Shape(NamedTuple):
    """Of a batch over a cache."""

    tokens: int
    """Of each row: 1, or a chunk of a prompt."""
    head_dim: int
    heads: int
    key_heads: int
    rule: ops.CachedRule
    sinks: bool
    dtypes: tuple[torch.dtype, ...]


_BF16, _BOTH = (torch.bfloat16,), (torch.bfloat16, torch.float32)
_SHAPES: Final = (
    _Shape(1, 64, 14, 2, ops.CachedRule(0.125), False, _BOTH),
    _Shape(1, 128, 16, 8, ops.CachedRule(0.09, 700), False, _BF16),
    _Shape(1, 256, 8, 1, ops.CachedRule(0.06, None, 50.0), False, _BF16),
    _Shape(1, 64, 64, 8, ops.CachedRule(0.125, 128), True, _BF16),
    _Shape(128, 64, 14, 2, ops.CachedRule(0.125), False, _BOTH),
    _Shape(128, 128, 16, 8, ops.CachedRule(0.09, 700), True, _BF16),
)
_DRY: Final = (
    _Shape(1, 16, 6, 2, ops.CachedRule(0.3, 20), False, _BOTH[1:]),
    _Shape(5, 16, 6, 2, ops.CachedRule(0.3), True, _BOTH[1:]),
)


class _Case(NamedTuple):
    """Inputs in one dtype."""

    qkv: Tensor
    turns: Tensor
    cache: ops.LayerCache
    places: ops.Places
    norms: ops.HeadNorms
    sinks: Tensor | None

    def to(self, dtype: torch.dtype) -> _Case:
        """A copy in `dtype`."""
        cache = ops.LayerCache(*(part.to(dtype, copy=True) for part in self.cache))
        norms = self.norms._replace(query=self.norms.query.to(dtype), key=self.norms.key.to(dtype))
        sinks = None if self.sinks is None else self.sinks.to(dtype)
        return _Case(self.qkv.to(dtype), self.turns, cache, self.places, norms, sinks)

    def rows(self, rows: slice) -> _Case:
        """Some rows of the batch, over the same cache."""
        return self._replace(qkv=self.qkv[rows], places=ops.Places(*(part[rows] for part in self.places)))

    def attended(self, rule: ops.CachedRule) -> Tensor:
        """What a layer makes of it, `[R, C, H, D]`."""
        queries = ops.rotate_and_cache(self.qkv, self.turns, self.cache, self.places, self.norms)
        return ops.cached_attention(queries, self.cache, self.places, rule, self.sinks)

    def by_definition(self, rule: ops.CachedRule) -> Tensor:
        """The same by plain torch."""
        queries = ops.rotate_and_cache_reference(self.qkv, self.turns, self.cache, self.places, self.norms)
        return ops.cached_attention_reference(queries, self.cache, self.places, rule, self.sinks)


def run(context: Context, poison: Callable[[], None]) -> None:
    """Errors and bits of all shapes; `poison` leaves NaN in the memory that the next tensors are likely to get."""
    for shape in _DRY if context.dry else _SHAPES:
        for dtype in shape.dtypes:
            _check(context, shape, dtype, poison)
    _speed(context)


def _check(context: Context, shape: _Shape, dtype: torch.dtype, poison: Callable[[], None]) -> None:
    """As for other operators, an error is at most twice that of plain torch plus 1e-5."""
    made = _case(context, shape)
    given = made.to(dtype)
    first = given.attended(shape.rule)
    poison()
    again = given.attended(shape.rule)
    alone = torch.cat([given.rows(slice(row, row + 1)).attended(shape.rule) for row in range(len(first))])
    exact, plain = (made.to(kind).by_definition(shape.rule).double() for kind in (torch.float64, dtype))
    name = f"cached_attention, {shape.tokens} a row, D {shape.head_dim}, heads {shape.heads}/{shape.key_heads}, {str(dtype).split('.')[1]}"
    size = float(exact.norm())
    bound = 2 * float((plain - exact).norm()) / size + _TOLERANCE
    context.correct(f"{name}: error", float((first.double() - exact).norm()) / size, bound)
    context.holds(f"{name}: the same bits twice", torch.equal(first, again))
    context.holds(f"{name}: a row's bits alone and beside others", torch.equal(first, alone))


def _case(context: Context, shape: _Shape) -> _Case:
    """Float32, rounded to bfloat16, so that every dtype gets the same numbers. What lies behind a row's newest token is NaN."""
    ends, capacity = ([1, 17, 40], 48) if context.dry else ([1, 255, 256, 257, 1100, 2048, 600], 2048)
    draw = torch.Generator(context.device).manual_seed(shape.heads)

    def made(*size: int) -> Tensor:
        return torch.randn(size, generator=draw, device=context.device).bfloat16().float()

    starts = [max(0, end // shape.tokens - 1) * shape.tokens if shape.tokens > 1 else end - 1 for end in ends]
    cache = ops.LayerCache(*made(2, len(ends) + 1, shape.key_heads, capacity, shape.head_dim))
    rows = [number + 1 for number in reversed(range(len(ends)))]
    for start, row in zip(starts, rows, strict=True):
        for part in cache:
            part[row, :, start:] = float("nan")
    places = ops.Places(*torch.tensor((starts, rows), device=context.device))
    angles = made(2, capacity, shape.head_dim // 2)
    turns = torch.stack((angles.cos(), angles.sin()), -1).flatten(2)
    norms = ops.HeadNorms(1.0 + 0.1 * made(shape.head_dim), 1.0 + 0.1 * made(shape.head_dim), 1e-6)
    qkv = made(len(ends), shape.tokens, (shape.heads + 2 * shape.key_heads) * shape.head_dim)
    return _Case(qkv, turns, cache, places, norms, made(shape.heads) if shape.sinks else None)


def _speed(context: Context) -> None:
    """Bytes of keys and values a second, for the rows that a decode step of a model of 0.5 billion parameters has."""
    rows, length, dtype = (4, 40, torch.float32) if context.dry else (256, 1024, torch.bfloat16)
    cache = ops.LayerCache(*torch.randn(2, rows, 2, length, 64, device=context.device).to(dtype))
    places = ops.Places(torch.full((rows,), length - 1, device=context.device), torch.arange(rows, device=context.device))
    queries = torch.randn(rows, 1, 14, 64, device=context.device).to(dtype)
    took = _seconds(context, partial(ops.cached_attention, queries, cache, places, ops.CachedRule(0.125)))
    rate = 2 * cache.keys.numel() * cache.keys.element_size() / took
    context.speed("cached_attention, one token a row", rate, "B/s", ("copy", context.ceilings["copy"]), 0.5)


def _seconds(context: Context, work: Callable[[], object]) -> float:
    """Of one call, from a graph of several, as the engine launches it: kernels one by one would take the host's time."""
    if context.dry:
        return seconds(work, context.device)
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            work()
    return seconds(graph.replay, context.device) / _CALLS
