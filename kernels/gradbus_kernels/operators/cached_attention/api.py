"""Attention of new tokens over a cache, for decoding and prefill, and the rotary embedding that fills the cache.

Neither waits for the GPU, and both can be captured in a CUDA graph: positions are read on the device. A token's bits depend on its
own row of the cache and its position alone (and on its place in a chunk, where C > 1); not on other rows or the capacity.
"""

from __future__ import annotations

from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_dtype, check_floats, require
from gradbus_kernels.operators.base.dispatch import choose
from gradbus_kernels.operators.cached_attention.reference import (
    CachedRule,
    LayerCache,
    Places,
    cached_attention_reference,
    copy_rows_reference,
    rotate_and_cache_reference,
)
from gradbus_kernels.operators.decoder_layer.head_norm import HeadNorms


def cached_attention(queries: Tensor, cache: LayerCache, places: Places, rule: CachedRule, sinks: Tensor | None = None) -> Tensor:
    """Attention `[R, C, H, D]` of queries of that shape, each over the keys of its row of the cache up to its own position.

    Queries and cache have one dtype; the cache's K heads divide H (grouped-query heads, Ainslie et al. 2023). `sinks` `[H]` are logits that
    each softmax counts beside its keys. One query a row (C = 1) reads the keys in splits of a fixed size, whose softmaxes are joined in
    order (flash-decoding, Dao et al. 2023); more run over the keys in order (Dao 2023). What the cache holds behind a row's newest query
    is never used. No gradient. Raises ValueError, which names the argument; positions are not checked, and must be below the capacity.
    """
    check_floats("queries", queries, (len(places.rows), None, None, cache.keys.shape[3]))
    _check_cache(cache, queries, "queries")
    heads, key_heads = queries.shape[2], cache.keys.shape[1]
    require(heads % key_heads == 0, "queries", f"has {heads} heads; pass a multiple of the cache's {key_heads}")
    require(rule.window is None or rule.window > 0, "rule", f"has window {rule.window}; pass at least 1, or None for none")
    if sinks is not None:
        check_floats("sinks", sinks, (heads,), queries)
    if choose("cached_attention", queries, ("reference", "triton")) == "reference":
        return cached_attention_reference(queries, cache, places, rule, sinks)
    from gradbus_kernels.operators.cached_attention.triton import attend_cached  # noqa: PLC0415 - needs Triton

    return attend_cached(queries.contiguous(), cache, places, rule, sinks)


def rotate_and_cache(qkv: Tensor, turns: Tensor, cache: LayerCache, places: Places, norms: HeadNorms | None = None) -> Tensor:
    """Rotated queries `[R, C, H, D]`; their keys, rotated, and values are put into the cache.

    `qkv` `[R, C, (H + 2K) D]` has the heads of queries, keys and values in turn. Neighbouring elements of a head are a pair, read as a
    complex number, and multiplied by that of `turns`, float32 `[2, length, D]`: for queries and for keys, by position (Su et al. 2021).
    `norms` come first. No gradient. Raises ValueError, which names the argument; positions are not checked, and must be below the capacity.
    """
    _, key_heads, capacity, size = cache.keys.shape
    check_floats("qkv", qkv, (len(places.rows), None, None))
    heads, rest = divmod(qkv.shape[2], size)
    require(rest == 0 and size % 2 == 0 and heads > 2 * key_heads, "qkv", f"has {qkv.shape[2]} columns; pass all heads, of an even size")
    check_floats("turns", turns, (2, None, size), qkv)
    require(turns.shape[1] >= capacity and turns.is_contiguous(), "turns", f"ends at {turns.shape[1]}; pass all {capacity} positions")
    _check_cache(cache, qkv, "qkv")
    if norms is not None:
        for weight in norms[:2]:
            check_floats("norms", weight, (size,), qkv)
    if choose("rotate_and_cache", qkv, ("reference", "triton")) == "reference":
        return rotate_and_cache_reference(qkv, turns, cache, places, norms)
    from gradbus_kernels.operators.cached_attention.triton import rotate_into  # noqa: PLC0415 - needs Triton

    return rotate_into(qkv.contiguous(), turns, cache, places, norms)


def copy_rows(into: Tensor, rows: Tensor, source: Tensor, source_rows: Tensor, length: int) -> None:
    """Copies the first `length` positions of rows of one cache into rows of another, of all layers.

    `into` and `source` are float `[N, rows, K, capacity, D]`, which differ in rows and capacity alone; `rows` and `source_rows` int64 `[R]`
    are not checked; no row may be twice among `rows`. Raises ValueError, which names the argument.
    """
    check_floats("into", into, (None,) * 5)
    check_floats("source", source, (into.shape[0], None, into.shape[2], None, into.shape[4]), into)
    check_dtype("source", source, "into", into)
    for name, part in (("into", into), ("source", source)):
        require(part.is_contiguous(), name, "is not contiguous; pass it as it was allocated")
        require(length <= part.shape[3], name, f"has room for {part.shape[3]} positions; pass one with room for {length}")
    require(rows.shape == source_rows.shape, "source_rows", f"has shape {tuple(source_rows.shape)}; pass as many as rows")
    if choose("copy_rows", into, ("reference", "triton")) == "reference":
        return copy_rows_reference(into, rows, source, source_rows, length)
    from gradbus_kernels.operators.cached_attention.triton import copy_lines  # noqa: PLC0415 - needs Triton

    return copy_lines(into, rows, source, source_rows, length)


def _check_cache(cache: LayerCache, like: Tensor, named: str) -> None:
    for name, part in zip(("keys", "values"), cache, strict=True):
        check_floats(name, part, tuple(cache.keys.shape), like)
        check_dtype(name, part, named, like)
        require(part.is_contiguous(), name, "is not contiguous; pass it as it was allocated")
