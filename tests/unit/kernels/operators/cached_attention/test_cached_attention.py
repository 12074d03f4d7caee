"""Attention over a cache against a float64 softmax by row, and the rotary embedding into it, every implementation alike."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from covering import covering

from gradbus_kernels.operators import (
    CachedRule,
    HeadNorms,
    LayerCache,
    Places,
    cached_attention,
    cached_attention_reference,
    copy_rows,
    rotate_and_cache,
    rotate_and_cache_reference,
    using,
)

NAN = float("nan")
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Over a naive error in the same dtype, of the largest value."""
HEADS = {"mha": (2, 2), "gqa": (6, 2), "mqa": (8, 1), "wide_group": (20, 1)}
STARTS = {"decode": (1, (0, 15, 16, 17, 70)), "chunks": (5, (0, 11, 16, 70))}
"""Queries a row, and where rows begin."""
RULES = {
    "plain": CachedRule(0.3),
    "window": CachedRule(0.3, 18),
    "narrow_window": CachedRule(0.3, 1),
    "softcap": CachedRule(0.9, None, 2.0),
}


@pytest.fixture(params=["reference", "triton"])
def implementation(request):
    if request.param == "triton" and find_spec("triton") is None:
        pytest.skip("triton is not installed; pip install triton")
    with using(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """So that short rows, too, have several splits, which are joined in several blocks."""
    if find_spec("triton") is not None:
        kernels = import_module("gradbus_kernels.operators.cached_attention.triton")
        blocks = import_module("gradbus_kernels.operators.base.block_sizes").AttentionBlocks(queries=16, keys=8, warps=1, stages=1)
        monkeypatch.setattr(kernels, "launch", lambda *_: blocks)
        for name, size in {"CACHED_SPLIT": 16, "CACHED_SPLITS": 2, "CACHED_HEADS": 4, "CACHED_COPY": 32}.items():
            monkeypatch.setattr(kernels, name, size)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


def case(heads, starts, size=16, dtype=torch.float64, capacity=96):
    """Queries, a cache whose entries behind each row's newest query are NaN, and places: batch rows are cache rows in reverse."""
    (count, begins), (query_heads, key_heads) = starts, heads
    rows = len(begins)
    cache = LayerCache(*(draw(rows + 1, key_heads, capacity, size, dtype=dtype).roll(n, 2) for n in range(2)))
    places = Places(torch.tensor(begins), torch.arange(rows).flip(0))
    for row, begin in zip(places.rows.tolist(), begins, strict=True):
        for part in cache:
            part[row, :, begin + count :] = NAN
    return draw(rows, count, query_heads, size, dtype=dtype), cache, places


def by_definition(queries, cache, places, rule, sinks=None):
    """One query head at a time, in float64."""
    out, group = torch.empty_like(queries, dtype=torch.float64), queries.shape[2] // cache.keys.shape[1]
    for item, (start, row) in enumerate(zip(places.starts.tolist(), places.rows.tolist(), strict=True)):
        for token in range(queries.shape[1]):
            end = start + token + 1
            begin = 0 if rule.window is None else max(0, end - rule.window)
            for head in range(queries.shape[2]):
                keys, values = (part[row, head // group, begin:end].double() for part in cache)
                scores = keys @ queries[item, token, head].double() * rule.scale
                scores = scores if rule.softcap is None else rule.softcap * torch.tanh(scores / rule.softcap)
                if sinks is not None:
                    scores, values = torch.cat((scores, sinks[head : head + 1].double())), torch.cat((values, values[:1] * 0))
                out[item, token, head] = scores.softmax(0) @ values
    return out


def close(found, exact, naive):
    allowed = 2 * (naive.double() - exact).abs().max() + TOLERANCE[found.dtype] * exact.abs().max()
    assert (found.double() - exact).abs().max() <= allowed


@pytest.mark.parametrize(("heads", "starts", "rule"), covering(HEADS, STARTS, RULES))
def test_attention_is_the_softmax_by_row(heads, starts, rule, implementation):
    exact = by_definition(*case(HEADS[heads], STARTS[starts]), RULES[rule])
    given = case(HEADS[heads], STARTS[starts], dtype=torch.float32)
    close(cached_attention(*given, RULES[rule]), exact, cached_attention_reference(*given, RULES[rule]))


@pytest.mark.parametrize(("size", "starts"), covering([12, 16, 64, 128], STARTS))
def test_heads_of_any_size_in_any_dtype(size, starts, dtype, implementation):
    exact_of, given = [case((4, 2), STARTS[starts], size, kind) for kind in (torch.float64, dtype)]
    exact = by_definition(
        *(LayerCache(*(p.to(dtype).double() for p in part)) if i == 1 else part for i, part in enumerate(exact_of)), RULES["plain"]
    )
    close(cached_attention(*given, RULES["plain"]), exact, cached_attention_reference(*given, RULES["plain"]))


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("level", [-3.0, 40.0])
def test_sinks_take_their_share_of_each_softmax(starts, level, implementation):
    sinks = draw(6, dtype=torch.float32) + level
    exact = by_definition(*case(HEADS["gqa"], STARTS[starts]), RULES["window"], sinks)
    given = case(HEADS["gqa"], STARTS[starts], dtype=torch.float32)
    close(cached_attention(*given, RULES["window"], sinks), exact, cached_attention_reference(*given, RULES["window"], sinks))


@pytest.mark.parametrize(("rule", "starts"), covering(RULES, STARTS))
def test_a_rows_bits_depend_neither_on_others_nor_on_the_capacity(starts, rule):
    with using("triton"):
        queries, cache, places = case(HEADS["gqa"], STARTS[starts], dtype=torch.float32)
        whole = cached_attention(queries, cache, places, RULES[rule])
        wider = LayerCache(*(torch.cat((part, torch.full_like(part, NAN)), dim=2) for part in cache))
        for number in range(len(queries)):
            row = slice(number, number + 1)
            alone = cached_attention(queries[row], wider, Places(*(part[row] for part in places)), RULES[rule])
            assert torch.equal(alone, whole[row])


def rotation(size, length):
    angles = draw(2, length, size // 2, dtype=torch.float32)
    return torch.stack((angles.cos(), angles.sin()), -1).flatten(2)


def rotated_by_definition(qkv, turns, places, norms, key_heads, size):
    """Rotated queries, rotated keys and values, `[R, C, heads, D]` each, in float64."""
    heads = qkv.double().view(*qkv.shape[:2], -1, size)
    queries, keys, values = heads.split([heads.shape[2] - 2 * key_heads, key_heads, key_heads], dim=2)
    if norms is not None:
        roots = [(part.square().mean(-1, keepdim=True) + norms.eps).sqrt() for part in (queries, keys)]
        weights = [weight.double() + (norms.kind == "offset") for weight in norms[:2]]
        queries, keys = queries / roots[0] * weights[0], keys / roots[1] * weights[1]
    parts = []
    for part, table in zip((queries, keys), turns.double(), strict=True):
        numbers = torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous())
        turn = torch.view_as_complex(table[places.positions(qkv.shape[1])].unflatten(-1, (-1, 2)).contiguous())
        parts.append(torch.view_as_real(numbers * turn[:, :, None]).flatten(-2))
    return *parts, values


@pytest.mark.parametrize(("kind", "starts", "shape"), covering([None, "llama", "float32", "offset"], STARTS, [((6, 2), 16), ((3, 1), 12)]))
def test_queries_are_turned_and_keys_and_values_lie_where_attention_finds_them(shape, starts, kind, dtype, implementation):
    heads, size = shape
    (count, begins), key_heads, capacity = STARTS[starts], heads[1], 75
    norms = None if kind is None else HeadNorms(*(draw(size + n).narrow(0, 0, size).to(dtype) for n in (1, 2)), 1e-6, kind)
    cache = LayerCache(*torch.full((2, len(begins) + 1, key_heads, capacity, size), NAN, dtype=dtype))
    expected = LayerCache(*(part.double() for part in cache))
    places, turns = Places(torch.tensor(begins), torch.arange(len(begins)).flip(0)), rotation(size, capacity + 5)
    qkv = draw(len(begins), count, (heads[0] + 2 * key_heads) * size, dtype=dtype)
    queries, keys, values = rotated_by_definition(qkv, turns, places, norms, key_heads, size)
    for item, (start, row) in enumerate(zip(begins, places.rows.tolist(), strict=True)):
        for part, new in zip(expected, (keys, values), strict=True):
            part[row, :, start : start + count] = new[item].transpose(0, 1)
    found = rotate_and_cache(qkv, turns, cache, places, norms)
    tolerance = {"rtol": 0.0, "atol": 3 * torch.finfo(dtype).eps * float(keys.abs().max())}  # three roundings
    torch.testing.assert_close(found.double(), queries, **tolerance)
    for part, wanted in zip(cache, expected, strict=True):
        torch.testing.assert_close(part.double(), wanted, equal_nan=True, **tolerance)


def test_rotated_bits_are_the_references_up_to_rounding_in_bfloat16():
    qkv, places = draw(3, 1, 10 * 16, dtype=torch.bfloat16), Places(torch.tensor([3, 0, 9]), torch.arange(3))
    found = []
    for implementation in ("reference", "triton"):
        with using(implementation):
            cache = LayerCache(*torch.zeros(2, 3, 2, 10, 16, dtype=torch.bfloat16))
            found.append((rotate_and_cache(qkv, rotation(16, 10), cache, places), *cache))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("length", [0, 1, 7, 20])
def test_copied_rows_have_the_sources_positions_and_nothing_else_changes(length, dtype, implementation):
    into, source = torch.full((4, 5, 2, 20, 6), 3.0, dtype=dtype), draw(4, 3, 2, 24, 6, dtype=dtype)
    rows, source_rows = torch.tensor([4, 0, 2]), torch.tensor([1, 1, 2])
    expected = into.clone()
    expected[:, rows, :, :length] = source[:, source_rows, :, :length]
    copy_rows(into, rows, source, source_rows, length)
    assert torch.equal(into, expected)


GOOD = {
    "queries": (
        torch.zeros(2, 1, 4, 8),
        LayerCache(*torch.zeros(2, 3, 2, 16, 8)),
        Places(*torch.zeros(2, 2, dtype=torch.int64)),
        CachedRule(0.3),
    ),
    "qkv": (
        torch.zeros(2, 1, 64),
        torch.zeros(2, 16, 8),
        LayerCache(*torch.zeros(2, 3, 2, 16, 8)),
        Places(*torch.zeros(2, 2, dtype=torch.int64)),
    ),
}
GOOD["into"] = (
    torch.zeros(4, 3, 2, 16, 8),
    torch.zeros(1, dtype=torch.int64),
    torch.ones(4, 1, 2, 16, 8),
    torch.zeros(1, dtype=torch.int64),
    12,
)
BAD = [
    (cached_attention, "queries", 0, torch.zeros(2, 1, 3, 8), "queries: has 3 heads"),
    (cached_attention, "queries", 0, torch.zeros(3, 1, 4, 8), "queries: has shape"),
    (cached_attention, "queries", 1, LayerCache(torch.zeros(3, 2, 16, 8), torch.zeros(3, 2, 15, 8)), "values: has shape"),
    (cached_attention, "queries", 1, LayerCache(*torch.zeros(2, 3, 2, 16, 8).double()), "keys: is torch.float64"),
    (cached_attention, "queries", 1, LayerCache(*torch.zeros(2, 3, 16, 2, 8).transpose(2, 3)), "keys: is not contiguous"),
    (cached_attention, "queries", 3, CachedRule(0.3, 0), "rule: has window 0"),
    (rotate_and_cache, "qkv", 0, torch.zeros(2, 1, 60), "qkv: has 60 columns"),
    (rotate_and_cache, "qkv", 0, torch.zeros(2, 1, 32), "qkv: has 32 columns"),
    (rotate_and_cache, "qkv", 1, torch.zeros(2, 15, 8), "turns: ends at 15"),
    (copy_rows, "into", 0, torch.zeros(4, 3, 2, 9, 8), "into: has room for 9"),
    (copy_rows, "into", 0, torch.zeros(4, 3, 2, 8, 16).transpose(3, 4), "into: is not contiguous"),
    (copy_rows, "into", 2, torch.zeros(4, 3, 1, 16, 8), "source: has shape"),
    (copy_rows, "into", 3, torch.zeros(2, dtype=torch.int64), "source_rows: has shape"),
]


@pytest.mark.parametrize(("operator", "name", "at", "wrong", "message"), BAD, ids=[row[-1] for row in BAD])
def test_a_wrong_argument_is_named(operator, name, at, wrong, message):
    given = list(GOOD[name])
    operator(*given)
    given[at] = wrong
    with pytest.raises(ValueError, match=message):
        operator(*given)


def test_references_write_and_find_the_same():
    qkv, turns, cache, places = GOOD["qkv"]
    fresh = LayerCache(*(part.clone() for part in cache))
    assert torch.equal(
        rotate_and_cache_reference(qkv + 1.0, turns + 1.0, fresh, places), rotate_and_cache(qkv + 1.0, turns + 1.0, cache, places)
    )
    assert torch.equal(fresh.keys, cache.keys)
