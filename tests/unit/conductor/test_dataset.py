import random

import hypothesis.strategies as st
from hypothesis import given

from gradbus_conductor.groups.order import DataOrder

DIGEST = "sha256:" + "0" * 64


def epoch(order, rows, number=0):
    return [order.row(index) for index in range(number * rows, (number + 1) * rows)]


@given(rows=st.integers(1, 60), seed=st.integers(0, 2**63 - 1), number=st.integers(0, 1000))
def test_an_epoch_is_a_permutation(rows, seed, number):
    assert sorted(epoch(DataOrder(DIGEST, rows, seed), rows, number)) == list(range(rows))


@given(seed=st.integers(0, 2**63 - 1), indexes=st.lists(st.integers(0, 500), max_size=30))
def test_a_row_depends_on_nothing_that_was_asked_before(seed, indexes):
    order = DataOrder(DIGEST, 17, seed)
    assert [order.row(index) for index in indexes] == [DataOrder(DIGEST, 17, seed).row(index) for index in indexes]


def test_epoch_seed_and_dataset_each_change_the_order():
    orders = [epoch(DataOrder(DIGEST, 100, 0), 100, number) for number in range(3)]
    orders += [epoch(DataOrder(DIGEST, 100, seed), 100) for seed in (1, 2)]
    orders.append(epoch(DataOrder(DIGEST.replace("0", "1"), 100, 0), 100))
    assert len({tuple(order) for order in orders}) == len(orders)


def test_the_order_is_the_same_in_every_release():
    assert epoch(DataOrder(DIGEST, 8, 0), 8) == [6, 2, 1, 7, 4, 0, 3, 5]


def test_where_two_epochs_meet_each_is_shuffled_once(monkeypatch):
    shuffled, shuffle = [], random.Random.shuffle
    monkeypatch.setattr(random.Random, "shuffle", lambda self, rows: shuffled.append(1) or shuffle(self, rows))
    order = DataOrder(DIGEST, 8, 0)
    for _ in range(20):
        order.row(7)
        order.row(8)
    assert len(shuffled) == 2
