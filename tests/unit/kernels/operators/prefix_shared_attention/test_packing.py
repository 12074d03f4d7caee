"""The positions of tokens in packed sequences, and their layout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.operators import PrefixLayout, pack_groups
from gradbus_kernels.operators.prefix_shared_attention import packing as prefix_packing

rows = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 6)), max_size=12)
slow = settings(deadline=None)


@pytest.fixture(params=[1, 64], ids=["shared", "mostly_not"])
def _threshold(request, monkeypatch):
    monkeypatch.setattr(prefix_packing, "_SHARED_AT_LEAST", request.param)


def tokens(drawn):
    """Prompts that are a function of their seed and length, so that some are equal, and responses that all differ."""
    prompts = [torch.arange(length) * 3 + seed for seed, length, _ in drawn]
    return prompts, [torch.arange(length, dtype=torch.int32) + 100 * row for row, (_, _, length) in enumerate(drawn)]


def history(batch, position):
    """The tokens that the packed token at `position` may see, itself included, read off the layout."""
    seen = batch.layout.visible()[position]
    return [token for _, token in sorted(zip(batch.position_ids[0, seen].tolist(), batch.input_ids[0, seen].tolist(), strict=True))]


@pytest.mark.usefixtures("_threshold")
@pytest.mark.parametrize("drawn", [[(0, 9, 3), (0, 9, 5), (1, 2, 0), (0, 9, 1), (1, 9, 4), (0, 2, 3), (0, 2, 3)], [(0, 1, 0)], []])
def test_known_rows_are_packed(drawn):
    check(drawn)


@slow
@given(rows)
def test_every_response_token_is_predicted_from_exactly_what_came_before_it(drawn):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_packing, "_SHARED_AT_LEAST", 1)
        check(drawn)


def check(drawn):
    prompts, responses = tokens(drawn)
    batch = pack_groups(prompts, responses)
    assert batch.layout.tokens == batch.input_ids.shape[1] == batch.position_ids.shape[1]
    assert batch.layout.tokens <= sum(len(p) + len(r) - 1 for p, r in zip(prompts, responses, strict=True) if len(r))
    reads = iter(batch.selected.tolist())
    for prompt, response in zip(prompts, responses, strict=True):
        before = prompt.tolist()
        for token in response.tolist():
            position = next(reads)
            assert history(batch, position) == before
            assert batch.position_ids[0, position] == len(before) - 1
            before.append(token)
    assert next(reads, None) is None
    assert batch.targets.tolist() == [token for response in responses for token in response.tolist()]


def test_a_prompt_that_rows_share_is_there_once():
    batch = pack_groups([torch.arange(30)] * 8, [torch.arange(length) for length in (3, 1, 7, 3, 2, 7, 1, 1)])
    assert batch.layout.lengths == (30, 1, 2, 2, 6, 6)
    assert batch.layout.parents == (None, 0, 0, 0, 0, 0)


def test_a_prompt_whose_saving_is_less_than_a_call_is_not_shared():
    batch = pack_groups([torch.arange(2)] * 4, [torch.arange(40)] * 4)
    assert batch.layout.lengths == (41,) * 4
    assert batch.layout.parents == (None,) * 4


def test_a_response_that_begins_like_another_is_not_taken_for_its_prompt():
    prompts = [torch.arange(64), torch.arange(63), torch.arange(64)]
    batch = pack_groups(prompts, [torch.tensor([1, 2]), torch.tensor([63, 9]), torch.tensor([3])])
    assert batch.layout.lengths == (64, 64, 1)
    assert batch.layout.parents in {(None, None, 1), (None, None, 0)}
    assert history(batch, int(batch.selected[1])) == [*range(64), 1]


@pytest.mark.parametrize(
    ("prompts", "responses", "words"),
    [
        ([torch.ones(2).long()], [], "responses: are 0; pass one for each of 1 prompts"),
        ([torch.ones(2)], [torch.ones(2).long()], r"prompts: hold torch.float32 \(2,\) on cpu in row 0; pass integers"),
        ([torch.ones(2).long()], [torch.ones(2, 1).long()], r"responses: hold torch.int64 \(2, 1\)"),
        ([torch.ones(2, device="meta").long()], [torch.ones(2).long()], "prompts: hold .* on meta"),
        ([torch.ones(0).long()], [torch.ones(2).long()], "prompts: are empty in row 0; pass at least one token"),
    ],
)
def test_what_is_no_batch_is_refused_under_its_name(prompts, responses, words):
    with pytest.raises(ValueError, match=words):
        pack_groups(prompts, responses)


@pytest.mark.parametrize(
    ("offsets", "parents", "words"),
    [
        ((), (), r"offsets: are \(\); pass cumulative lengths that begin with 0"),
        ((1, 2), (None,), "offsets: are"),
        ((0, 3, 2), (None, None), "offsets: are"),
        ((0, 3, 4), (None,), "parents: are 1; pass one for each of 2 segments"),
        ((0, 3, 4), (None, 2), "parents: says 2 for segment 1; pass the index of a segment without a parent"),
        ((0, 3, 4, 5), (None, 0, 1), "parents: says 1 for segment 2"),
        ((0, 3, 4), (None, -2), "parents: says -2"),
    ],
)
def test_a_layout_that_is_none_is_refused(offsets, parents, words):
    with pytest.raises(ValueError, match=words):
        PrefixLayout(offsets, parents)


def test_positions_and_sight_are_of_the_sequence_and_not_of_the_row():
    layout = PrefixLayout.of_lengths([2, 3, 0, 1], [1, None, None, 1])
    assert layout.position_ids().tolist() == [3, 4, 0, 1, 2, 3]
    assert [row.nonzero().flatten().tolist() for row in layout.visible()] == [
        [0, 2, 3, 4],
        [0, 1, 2, 3, 4],
        [2],
        [2, 3],
        [2, 3, 4],
        [2, 3, 4, 5],
    ]
    assert [row.nonzero().flatten().tolist() for row in layout.visible(window=2)] == [[0, 4], [0, 1], [2], [2, 3], [3, 4], [4, 5]]


def test_padding_is_of_the_ids_alone_and_in_no_segment():
    batch = pack_groups([torch.arange(30)] * 8, [torch.arange(9)] * 8)
    padded, tokens = batch.padded(100), batch.layout.tokens
    assert padded.input_ids.tolist() == [[*batch.input_ids[0].tolist(), *[0] * (100 - tokens)]]
    assert padded.position_ids is batch.position_ids
    assert padded.layout is batch.layout
    assert padded.selected is batch.selected
    assert batch.padded(tokens) is batch
