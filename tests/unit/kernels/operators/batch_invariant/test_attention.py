"""A query's bits depend on the keys it sees alone: they are equal in decode, in a chunk and in a whole sequence."""

from functools import cache

import pytest
import torch

from gradbus_kernels.operators import using
from gradbus_kernels.operators.batch_invariant import attention
from gradbus_kernels.operators.batch_invariant.attention import MASKED, biases_of, invariant_attention, invariant_attention_reference, pages

SHAPES = [(4, 4, 8), (4, 1, 10), (6, 2, 16), (14, 2, 64)]
"""Query heads, key heads, head_dim."""


def made(rows, length, shape, dtype=torch.float32):
    draw = torch.Generator().manual_seed(length)
    (heads, key_heads, size) = shape
    return [torch.randn(rows, count, length, size, generator=draw).to(dtype) for count in (heads, key_heads, key_heads)]


def part(query, key, value, start, end):
    """Queries `start` to `end`, with all that they see."""
    return invariant_attention(query[:, :, start:end], key[:, :, :end], value[:, :, :end], 0.3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_chunks_and_a_whole_sequence_agree_in_every_bit(shape, dtype):
    query, key, value = made(2, 70, shape, dtype)
    whole = invariant_attention(query, key, value, 0.3)
    for start, end in [(0, 1), (5, 6), (31, 32), (32, 33), (69, 70), (0, 8), (8, 16), (16, 32), (32, 64), (1, 70), (33, 36)]:
        assert torch.equal(part(query, key, value, start, end), whole[:, :, start:end]), (start, end)


def test_heads_whose_queries_depend_on_their_index_are_padded(monkeypatch):
    refuse(monkeypatch, lambda shape: shape.size % 16 and shape.length == 64)
    query, key, value = made(2, 70, (4, 2, 24))
    whole = invariant_attention(query, key, value, 0.3)
    torch.testing.assert_close(whole, invariant_attention_reference(query, key, value, 0.3))
    for start, end in [(0, 1), (31, 32), (69, 70), (0, 8), (1, 70), (33, 36)]:
        assert torch.equal(part(query, key, value, start, end), whole[:, :, start:end]), (start, end)


def test_a_machine_on_which_no_head_keeps_its_bits_is_refused(monkeypatch):
    refuse(monkeypatch, lambda shape: True)
    with pytest.raises(RuntimeError, match=r"queries of heads of 24 depend on their index in a product; run with numerics = 'fast'"):
        invariant_attention(*made(1, 5, (2, 2, 24)), 0.3)


def refuse(monkeypatch, depends):
    """This machine's BLAS sums a query in an order that depends on its index, in the shapes for which `depends` is true."""
    agrees = attention._agrees
    monkeypatch.setattr(attention, "_agrees", lambda count, shape: not depends(shape) and agrees(count, shape))
    for name in ("_head_size", "_query_width"):
        monkeypatch.setattr(attention, name, getattr(attention, name).__wrapped__)


def test_a_sequence_beyond_a_block_of_queries_agrees_with_its_end():
    query, key, value = made(1, 300, (2, 1, 16))
    whole = invariant_attention(query, key, value, 0.3)
    for start, end in [(255, 256), (256, 257), (299, 300), (250, 290)]:
        assert torch.equal(part(query, key, value, start, end), whole[:, :, start:end])


def test_rows_do_not_depend_on_each_other():
    query, key, value = made(5, 40, (4, 2, 16))
    whole = invariant_attention(query, key, value, 0.3)
    for row in range(5):
        alone = invariant_attention(query[row : row + 1], key[row : row + 1], value[row : row + 1], 0.3)
        assert torch.equal(alone, whole[row : row + 1])


@pytest.mark.parametrize(("count", "length"), [(1, 1), (1, 19), (19, 19), (5, 40)])
def test_value_and_gradients_are_those_of_softmax_attention(implementation, count, length, dtype):
    query, key, value = made(2, length, (4, 2, 10), dtype)
    inputs = [tensor.clone().requires_grad_() for tensor in (query[:, :, -count:], key, value)]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    pull = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(3))
    out, expected = invariant_attention(*inputs, 0.3), invariant_attention_reference(*wide, 0.3)
    (out.float() * pull).sum().backward()
    (expected * pull.double()).sum().backward()
    room = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    torch.testing.assert_close(out.double(), expected, atol=room, rtol=room)
    for found, right in zip(inputs, wide, strict=True):
        torch.testing.assert_close(found.grad.double(), right.grad, atol=10 * room, rtol=10 * room)


def test_triton_gives_a_query_the_same_bits_alone_and_among_others():
    pytest.importorskip("triton")
    query, key, value = made(1, 70, (2, 1, 10))
    with using("triton"):
        whole = invariant_attention(query, key, value, 0.3)
        for start, end in [(0, 1), (69, 70), (30, 67)]:
            assert torch.equal(part(query, key, value, start, end), whole[:, :, start:end])


def test_pages_cover_a_length_and_do_not_depend_on_it():
    for length in (1, 32, 33, 64, 65, 256, 257, 1000):
        spans = pages(length)
        assert spans[0][0] == 0
        assert spans[-1][0] < length <= spans[-1][1]
        assert pages(1000)[: len(spans)] == spans


def test_the_pages_of_few_lengths_are_kept():
    """A decode asks for every length: those of a long context would take gigabytes."""
    for length in range(1, 20_000, 7):
        pages(length)
    assert attention._pages.cache_info().currsize <= 16


def test_the_queries_of_a_product_follow_the_present_number_of_threads(monkeypatch):
    """A worker serves runs with different numbers of threads, one after the other."""
    monkeypatch.setattr(attention, "_agrees", lambda count, shape: count == 32 or shape.threads == 1)
    for name in ("_head_size", "_query_width"):
        monkeypatch.setattr(attention, name, cache(getattr(attention, name).__wrapped__))
    widths = []
    for threads in (1, 2, 1):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        widths.append(attention.query_width(1, 16, (32, 64), torch.float32))
    assert widths == [1, 32, 1]


@pytest.mark.parametrize(("rows", "count", "length"), [(2, 0, 3), (2, 0, 0), (0, 2, 3)])
def test_no_queries_give_nothing_and_no_gradient(implementation, count, rows, length):
    query, key, value = (torch.randn(rows, heads, size, 8, requires_grad=True) for heads, size in ((4, count), (2, length), (2, length)))
    found = invariant_attention(query, key, value, 0.3)
    found.sum().backward()
    assert found.shape == query.shape
    assert key.grad.shape == key.shape
    assert not key.grad.any()
    assert not value.grad.any()


def test_bad_arguments_are_named():
    query, key, value = made(2, 5, (4, 2, 8))
    for arguments, named in [
        ((query, key[:, :, :4], value[:, :, :4]), "key: has 4 positions for 5 queries"),
        ((query[:, :3], key, value), "key: has 2 heads; pass a number that divides the query's 3"),
        ((query, key, value[..., :4]), "value: has shape"),
        ((query[0], key, value), "query: has shape"),
        ((query.int(), key, value), "query: is torch.int32"),
        ((query, key.double(), value), "key: is torch.float64; pass torch.float32 like query"),
        ((query, key, value.bfloat16()), "value: is torch.bfloat16"),
        ((query, key.to("meta"), value), "key: is on meta"),
    ]:
        with pytest.raises(ValueError, match=named):
            invariant_attention(*arguments, 0.3)
    with pytest.raises(ValueError, match="scale: is nan; pass a finite number"):
        invariant_attention(query, key, value, float("nan"))


@pytest.mark.parametrize("window", [None, 1, 7, 64])
@pytest.mark.parametrize("length", [20, 32, 33, 300])
def test_a_bias_shows_the_keys_up_to_a_position_in_each_page_and_copy(length, window):
    spans, positions = pages(length), torch.arange(length)
    for copies in (1, 3):
        found = [bias.view(length, copies, -1) for bias in biases_of(positions, spans, copies, window)]
        back = positions[:, None] - torch.arange(spans[-1][1])
        expected = torch.where((back >= 0) & (back < (window or length)), 0.0, MASKED)
        assert torch.equal(torch.cat(found, dim=-1), expected[:, None].expand(-1, copies, -1))
