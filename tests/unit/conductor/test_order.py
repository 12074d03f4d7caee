"""Orders of large datasets and of mixtures."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gradbus_conductor.groups import order as module
from gradbus_conductor.groups.order import DataOrder, MixtureOrder, permuted

DIGEST = "sha256:" + "0" * 64
PARTS = st.lists(st.tuples(st.integers(1, 40), st.floats(0.001, 1000.0)), min_size=1, max_size=5)


@given(rows=st.integers(1, 3000), key=st.binary(min_size=32, max_size=32))
def test_the_cipher_is_a_permutation(rows, key):
    assert sorted(permuted(position, rows, key) for position in range(rows)) == list(range(rows))


def test_a_large_dataset_has_an_order_without_memory_that_each_epoch_changes(monkeypatch):
    rows = module._SHUFFLED_ROWS + 1
    order = DataOrder(DIGEST, rows, 0)
    monkeypatch.setattr(module.random.Random, "shuffle", None)
    first, second = ([order.row(epoch * rows + position) for position in range(500)] for epoch in (0, 1))
    assert len({*first, *second}) > 990, "neither an epoch repeats a row nor another epoch the order"
    assert [DataOrder(DIGEST, rows, 0).row(index) for index in (499, 0)] == [first[499], first[0]]
    assert abs(sum(first) / len(first) / rows - 0.5) < 0.1, "from all of the dataset"


def test_the_orders_are_the_same_in_every_release():
    assert [DataOrder(DIGEST, 5_000_000, 0).row(index) for index in range(4)] == [2266219, 2096790, 68078, 1014343]
    assert [MixtureOrder(DIGEST, [(3, 0.5), (2, 0.25), (4, 1.25)], 0).row(index) for index in range(10)] == [8, 6, 7, 2, 5, 6, 3, 1, 7, 8]


@given(parts=PARTS, seed=st.integers(0, 2**63 - 1), count=st.integers(1, 300))
def test_each_part_has_its_share_of_every_beginning_and_its_own_epochs(parts, seed, count):
    order = MixtureOrder(DIGEST, parts, seed)
    rows = [order.row(index) for index in range(count)]
    total = sum(weight for _, weight in parts)
    start = 0
    for at, (size, weight) in enumerate(parts):
        mine = [row - start for row in rows if start <= row < start + size]
        assert abs(len(mine) - count * weight / total) <= at + 1
        for epoch in range(0, len(mine), size):
            assert len(set(mine[epoch : epoch + size])) == len(mine[epoch : epoch + size])
        start += size
    assert all(0 <= row < start for row in rows)


def test_a_row_depends_on_nothing_that_was_asked_before():
    parts = [(7, 1.0), (9, 2.5)]
    order = MixtureOrder(DIGEST, parts, 3)
    rows = [order.row(index) for index in range(100)]
    assert [MixtureOrder(DIGEST, parts, 3).row(index) for index in (99, 5, 50)] == [rows[99], rows[5], rows[50]]
    assert rows != [MixtureOrder(DIGEST, parts, 4).row(index) for index in range(100)]


@pytest.mark.parametrize("weights", [(1.0, 3.0), (0.25, 0.75), (1e-3, 3e-3)])
def test_only_the_proportion_of_the_weights_counts(weights):
    order = MixtureOrder(DIGEST, [(100, weight) for weight in weights], 0)
    assert [order.row(index) >= 100 for index in range(8)] == [True, True, True, False] * 2
