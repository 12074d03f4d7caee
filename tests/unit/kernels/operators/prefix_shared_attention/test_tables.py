"""The attention kernels' tables: every query and key that see each other meet exactly once, and a full range needs no mask."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradbus_kernels.operators import PrefixLayout
from gradbus_kernels.operators.base.block_sizes import ATTENTION_PART, ATTENTION_PARTS, AttentionBlocks
from gradbus_kernels.operators.prefix_shared_attention import tables
from gradbus_kernels.operators.prefix_shared_attention.tables import key_tables, query_tables

CPU = torch.device("cpu")
BLOCKS = [AttentionBlocks(queries, keys, 1, 1) for queries, keys in ((2, 2), (4, 2), (2, 4))]
LAYOUTS = st.lists(st.integers(0, 9), min_size=1, max_size=7).flatmap(
    lambda lengths: st.lists(st.integers(-1, 1), min_size=len(lengths), max_size=len(lengths)).map(
        lambda kinds: PrefixLayout.of_lengths(lengths, [None if at < 2 or kind < 0 else min(kind, at - 1) for at, kind in enumerate(kinds)])
    )
)
WINDOWS = st.none() | st.integers(1, 20)


def rows(table):
    return table.tolist()


def seen(back, window):
    return back >= 0 and (window is None or back < window)


@given(LAYOUTS, st.sampled_from(BLOCKS), WINDOWS)
def test_queries_meet_the_keys_that_they_see(layout, blocks, window):
    found = query_tables(layout, blocks, window, CPU)
    met = torch.zeros(layout.tokens, layout.tokens, dtype=torch.int64)
    for first, end, position, full, masked, behind in rows(found.blocks):
        queries = range(first, min(first + blocks.queries, end))
        for number, (begin, last, origin) in enumerate(rows(found.ranges)[full:behind], full):
            assert number >= masked or (last - begin) % blocks.keys == 0
            for query in queries:
                for key in range(begin, last):
                    met[query, key] += number < masked or seen(position + query - first - (key - origin), window)
    assert torch.equal(met, layout.visible(window).long())


@given(LAYOUTS, st.sampled_from(BLOCKS), WINDOWS, st.integers(1, 3), st.sampled_from([4, 8, 64]))
def test_keys_meet_the_queries_that_see_them(layout, blocks, window, group, part):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "ATTENTION_PART", part)
        found = key_tables.__wrapped__(layout, blocks, group, window, CPU)
    met = torch.zeros(group, layout.tokens, layout.tokens, dtype=torch.int64)
    for first, end, begin, full, masked, behind, head, heads_end, _ in rows(found.blocks):
        for number, (opens, closes, origin) in enumerate(rows(found.ranges)[full:behind], full):
            assert number >= masked or (closes - opens) % blocks.queries == 0
            for query in range(opens, closes):
                for key in range(first, min(first + blocks.keys, end)):
                    met[head:heads_end, query, key] += number < masked or seen(query - origin - (key - begin), window)
    assert torch.equal(met, layout.visible(window).long().expand(group, -1, -1))


@given(LAYOUTS, st.sampled_from(BLOCKS), st.integers(1, 3))
def test_every_part_of_a_block_has_a_place_among_its_sums(layout, blocks, group):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "ATTENTION_PART", 4)
        found = key_tables.__wrapped__(layout, blocks, group, None, CPU)
    places = {row[-1]: row[0] for row in rows(found.blocks) if row[-1] >= 0}
    assert sorted(places) == list(range(found.parts))
    assert {place: first for first, _, begin, end in rows(found.sums) for place in range(begin, end)} == places
    alone = [row[0] for row in rows(found.blocks) if row[-1] < 0]
    assert len({*alone, *(row[0] for row in rows(found.sums))}) == len(alone) + len(found.sums)


@pytest.mark.parametrize(
    ("lengths", "group"),
    [([1 << 15], 4), ([1 << 17], 8), ([1 << 13, *[1 << 12] * 16], 4), ([*[1 << 14] * 8], 7), ([1 << 16, *[8] * 64], 8)],
)
def test_long_contexts_have_no_more_sums_of_parts_than_short_ones(lengths, group, monkeypatch):
    monkeypatch.setattr(tables, "ATTENTION_PART", ATTENTION_PART)
    layout = PrefixLayout.of_lengths(lengths, [None, *[0 if lengths[-1] < lengths[0] else None] * (len(lengths) - 1)])
    found = key_tables(layout, AttentionBlocks(64, 64, 1, 1), group, None, CPU)
    assert found.parts <= 2 * ATTENTION_PARTS
    assert len(found.blocks) <= layout.tokens // 64 + len(lengths) + 2 * ATTENTION_PARTS


def test_a_prompt_with_many_branches_is_divided_among_programs(monkeypatch):
    monkeypatch.setattr(tables, "ATTENTION_PART", ATTENTION_PART)
    layout = PrefixLayout.of_lengths([512, *[192] * 8], [None, *[0] * 8])
    found = key_tables(layout, AttentionBlocks(64, 64, 1, 1), 7, None, CPU)
    work = [sum(end - begin for begin, end, _ in rows(found.ranges)[row[3] : row[5]]) * (row[7] - row[6]) for row in rows(found.blocks)]
    assert max(work) <= ATTENTION_PART
    assert work == sorted(work, reverse=True)
    assert len(rows(found.sums)) == 512 // 64
