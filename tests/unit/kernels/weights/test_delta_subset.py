"""The codecs of a delta, by numpy and compiled: subsets, numbers, bits and steps; and arbitrary bytes, which are refused."""

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.weights.delta import chunk
from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, Reader, Writer
from gradbus_kernels.weights.delta.chunk import FloatFormat, apply_chunk, encode_chunk
from gradbus_kernels.weights.delta.loops import NUMPY
from gradbus_kernels.weights.delta.subset import read_subset, write_subset

BF16 = FloatFormat("BF16", 16, 7)
patient = settings(deadline=None)


def written(members, size, loops=NUMPY):
    out = Writer()
    write_subset(out, np.array(members, np.intp), size, loops)
    return out.done()


def drawn(size, share, seed=0):
    return np.flatnonzero(np.random.default_rng(seed).random(size) < share)


@patient
@given(st.integers(0, 3000), st.sampled_from([0, 0.001, 0.02, 0.3, 0.5, 0.7, 0.999, 1]), st.integers(0, 99))
def test_a_subset_comes_back_from_the_same_bytes(loops, size, share, seed):
    members = drawn(size, share, seed)
    content = written(members, size, loops)
    assert content == written(members, size)
    source = Reader(content)
    assert read_subset(source, size, loops).tolist() == members.tolist()
    assert source.left == 0


@pytest.mark.parametrize("members", [[0], [99], [0, 99], range(50), range(50, 100), range(1, 100), range(99)])
def test_a_subset_may_be_as_uneven_as_it_likes(members, loops):
    assert read_subset(Reader(written(members, 100, loops)), 100, loops).tolist() == list(members)


@pytest.mark.parametrize("share", [0.0005, 0.002, 0.01, 0.05, 0.2, 0.35, 0.5, 0.65, 0.9, 0.999])
def test_a_subset_takes_little_more_than_its_entropy(share):
    size = 1 << 18
    members = drawn(size, share)
    part = len(members) / size
    entropy = -size / 8 * (part * np.log2(part) + (1 - part) * np.log2(1 - part))
    assert len(written(members, size)) < 1.04 * entropy + 16


@given(st.integers(0, 2**62))
def test_a_number_comes_back(number):
    out = Writer()
    out.number(number)
    assert Reader(out.done()).number(number) == number


def test_a_number_has_a_limit_and_an_end():
    with pytest.raises(DamagedDeltaError, match="8 stands where 7 is the most"):
        Reader(b"\x08").number(7)
    with pytest.raises(DamagedDeltaError, match="no end"):
        Reader(b"\xff" * 20).number(2**80)


def test_nothing_is_read_past_the_end():
    source = Reader(b"abc")
    assert bytes(source.raw(2)) == b"ab"
    assert not source.accept(b"cd")
    assert source.left == 1
    with pytest.raises(DamagedDeltaError, match="2 bytes are announced where 1 are left"):
        source.raw(2)
    with pytest.raises(DamagedDeltaError, match="announced"):
        source.bits(9)


def test_a_member_outside_is_refused(loops):
    # One member of 100: a quotient of 1, then 63 in six planes.
    with pytest.raises(DamagedDeltaError, match="position 127 is named among 100"):
        read_subset(Reader(bytes([1, 1, 2] + [1] * 6)), 100, loops)


@pytest.mark.parametrize(("unary", "found"), [(0, 0), (0b01, 1), (0b111, 3)])
def test_a_list_of_another_length_is_refused(unary, found, loops):
    with pytest.raises(DamagedDeltaError, match=f"a list of 2 has {found} members"):
        read_subset(Reader(bytes([2, 1, unary] + [0] * 5)), 100, loops)


@patient
@given(st.binary(max_size=200), st.integers(0, 1000))
def test_any_bytes_give_a_subset_or_the_same_error(both_loops, content, size):
    ends = []
    for loops in both_loops.values():
        try:
            members = read_subset(Reader(content), size, loops).tolist()
            assert members == sorted({index for index in members if 0 <= index < size})
            ends.append(members)
        except DamagedDeltaError as error:
            ends.append(str(error))
    assert ends[0] == ends[1]


def random_bits(count, width=16, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << width, count).astype(f"u{width // 8}")


def nowhere(block):
    """Visits a block, and does nothing."""


@patient
@given(st.integers(0, 256), st.binary(max_size=300))
def test_any_bytes_change_weights_or_give_the_same_error(both_loops, limit, content):
    out = Writer()
    out.number(limit)
    old, ends = random_bits(700), []
    for loops in both_loops.values():
        framed = np.full(900, 7, np.uint16)
        try:
            apply_chunk(memoryview(out.done() + content), old, framed[100:800], BF16, loops, nowhere)
            ends.append(framed.tolist())
        except DamagedDeltaError as error:
            ends.append(str(error))
        assert set(framed[:100]) | set(framed[800:]) == {7}, "nothing is written outside"
    assert ends[0] == ends[1]


@patient
@given(st.data())
def test_a_flipped_or_cut_chunk_gives_weights_or_an_error(loops, data):
    old = (np.random.default_rng(0).normal(0, 0.02, 3000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    new = old + (np.random.default_rng(1).random(3000) < 0.1).astype(np.uint16)
    content = bytearray(encode_chunk(old, new, BF16, loops, nowhere))
    del content[data.draw(st.integers(0, len(content))) :]
    for _ in range(data.draw(st.integers(0, 4)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    framed = np.full(3200, 7, np.uint16)
    with suppress(DamagedDeltaError):
        apply_chunk(memoryview(bytes(content)), old, framed[100:3100], BF16, loops, nowhere)
    assert set(framed[:100]) | set(framed[3100:]) == {7}


def test_a_chunk_without_changes_is_empty(loops):
    old = np.arange(500, dtype=np.uint16)
    assert encode_chunk(old, old.copy(), BF16, loops, nowhere) == b""


def test_every_block_is_visited_in_order_and_once(loops, monkeypatch):
    monkeypatch.setattr(chunk, "BLOCK_BYTES", 256)
    old, new, visited = random_bits(1000), np.zeros(1000, np.uint16), []
    content = encode_chunk(old, np.where(np.arange(1000) % 9 == 0, old + 1, old).astype(np.uint16), BF16, loops, visited.append)
    apply_chunk(memoryview(content), old, new, BF16, loops, visited.append)
    edges = [*range(0, 1000, 128), 1000]
    assert visited == [slice(*pair) for pair in pairwise(edges)] * 2
    assert (old != new).sum() == 112


@pytest.mark.parametrize("estimate", [0, 100, 10_000])
def test_a_wrong_estimate_of_the_changes_does_not_change_the_bytes(loops, estimate, monkeypatch):
    old = (np.random.default_rng(0).normal(0, 0.02, 10_000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    new, visited = old + (np.arange(10_000) % 50 == 0).astype(np.uint16), []
    content = encode_chunk(old, new, BF16, loops, nowhere)
    monkeypatch.setattr(chunk, "_estimate_changes", lambda *_: estimate)
    assert encode_chunk(old, new, BF16, loops, visited.append) == content
    assert visited == [slice(0, 10_000)]


def test_changes_are_estimated_from_pieces_all_over_the_chunk():
    old = np.zeros(1 << 20, np.uint16)
    for period in (3, 100, 4000):
        changes = np.arange(1 << 20) % period == 0
        assert 0.5 < chunk._estimate_changes(old, changes.astype(np.uint16)) / changes.sum() < 2
    assert chunk._estimate_changes(old[:63], old[:63] + 1) == 0
