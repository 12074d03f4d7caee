"""The codecs of a delta: subsets, numbers and planes; and arbitrary bytes, which are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.weights.delta.bytes import DamagedDeltaError, Reader, Writer
from gradbus_kernels.weights.delta.chunk import FloatFormat, apply_chunk, encode_chunk
from gradbus_kernels.weights.delta.subset import read_subset, set_bit_indices, write_subset

BF16 = FloatFormat("BF16", 16, 7)
patient = settings(deadline=None)


def written(members, size):
    out = Writer()
    write_subset(out, np.array(members, np.intp), size)
    return out.done()


def drawn(size, share, seed=0):
    return np.flatnonzero(np.random.default_rng(seed).random(size) < share)


@patient
@given(st.integers(0, 3000), st.sampled_from([0, 0.001, 0.02, 0.3, 0.5, 0.7, 0.999, 1]), st.integers(0, 99))
def test_a_subset_comes_back(size, share, seed):
    members = drawn(size, share, seed)
    source = Reader(written(members, size))
    assert read_subset(source, size).tolist() == members.tolist()
    assert source.left == 0


@pytest.mark.parametrize("members", [[0], [99], [0, 99], range(50), range(50, 100), range(1, 100), range(99)])
def test_a_subset_may_be_as_uneven_as_it_likes(members):
    assert read_subset(Reader(written(members, 100)), 100).tolist() == list(members)


@pytest.mark.parametrize("share", [0.0005, 0.002, 0.01, 0.05, 0.2, 0.35, 0.5, 0.65, 0.9, 0.999])
def test_a_subset_takes_little_more_than_its_entropy(share):
    size = 1 << 18
    members = drawn(size, share)
    part = len(members) / size
    entropy = -size / 8 * (part * np.log2(part) + (1 - part) * np.log2(1 - part))
    assert len(written(members, size)) < 1.04 * entropy + 16


@patient
@given(st.lists(st.sampled_from([0, 1, 1 << 63, 2**64 - 1, 0xF0F0]), max_size=40))
def test_all_set_bits_are_found(words):
    words = np.array(words, np.uint64)
    expected = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    assert np.sort(set_bit_indices(words)).tolist() == expected.tolist()


def test_set_bits_are_listed_in_the_order_of_the_format():
    assert set_bit_indices(np.array([0b1001, 0, 0b11], np.uint64)).tolist() == [0, 128, 3, 129]


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


@given(st.lists(st.integers(0, 2**20 - 1)), st.integers(0, 20))
def test_planes_keep_the_low_bits(values, width):
    out = Writer()
    out.planes(np.array(values, np.uint32), width)
    assert Reader(out.done()).planes(len(values), width).tolist() == [value % (1 << width) for value in values]


def test_nothing_is_read_past_the_end():
    source = Reader(b"abc")
    assert bytes(source.raw(2)) == b"ab"
    assert not source.accept(b"cd")
    assert source.left == 1
    with pytest.raises(DamagedDeltaError, match="2 bytes are announced where 1 are left"):
        source.raw(2)
    with pytest.raises(DamagedDeltaError, match="announced"):
        source.bits(9)


def test_a_member_outside_is_refused():
    # One member of 100: a quotient of 1, then 63 in six planes.
    with pytest.raises(DamagedDeltaError, match="position 127 is named among 100"):
        read_subset(Reader(bytes([1, 1, 2] + [1] * 6)), 100)


def test_a_list_with_too_few_members_is_refused():
    with pytest.raises(DamagedDeltaError, match="a list of 2 has 1 members"):
        read_subset(Reader(bytes([2, 0, 1] + [0] * 5)), 100)


@patient
@given(st.binary(max_size=200), st.integers(0, 1000))
def test_any_bytes_give_a_subset_or_an_error(content, size):
    try:
        members = read_subset(Reader(content), size)
    except DamagedDeltaError:
        return
    assert members.tolist() == sorted({index for index in members.tolist() if 0 <= index < size})


@patient
@given(st.integers(0, 1 << 15), st.binary(max_size=300))
def test_any_bytes_change_weights_or_give_an_error(limit, content):
    out = Writer()
    out.number(limit)
    old = np.random.default_rng(0).integers(0, 1 << 16, 700).astype(np.uint16)
    new = old.copy()
    try:
        apply_chunk(memoryview(out.done() + content), old, new, BF16)
    except DamagedDeltaError:
        return
    assert (old != new).sum() <= len(old)


def test_a_chunk_without_changes_is_empty():
    old = np.arange(500, dtype=np.uint16)
    assert encode_chunk(old, old.copy(), BF16) == b""
