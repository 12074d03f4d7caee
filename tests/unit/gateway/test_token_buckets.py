"""Token buckets and slots."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus_gateway.http.slots import Slots, Turns
from gradbus_gateway.http.token_buckets import TokenBuckets


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_burst_passes_and_then_the_rate(clock):
    buckets = TokenBuckets(2.0, 3, clock)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.5
    assert [buckets.take("a") for _ in range(2)] == [0, 0.5]


def test_a_refused_request_costs_nothing(clock):
    buckets = TokenBuckets(1.0, 1, clock)
    assert buckets.take("a") == 0
    assert [buckets.take("a") for _ in range(5)] == [1.0] * 5


def test_keys_do_not_share_a_bucket(clock):
    buckets = TokenBuckets(1.0, 1, clock)
    assert [buckets.take(key) for key in "abab"] == [0, 0, 1.0, 1.0]


def test_a_rate_of_zero_is_no_limit(clock):
    buckets = TokenBuckets(0.0, 1, clock)
    assert [buckets.take("a") for _ in range(100)] == [0] * 100


def test_keys_without_number_fill_no_memory(clock):
    buckets = TokenBuckets(1.0, 1, clock)
    for number in range(20_000):
        buckets.take(str(number))
    assert len(buckets._full_at) == 10_000
    assert buckets.wait("19999") == 1.0


@given(
    rate=st.floats(0.1, 100),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_no_more_passes_than_burst_and_rate_allow(rate, burst, pauses):
    clock = Clock()
    buckets, passed = TokenBuckets(rate, burst, clock), 0
    for pause in pauses:
        clock.now += pause
        passed += not buckets.take("a")
        assert passed <= burst + rate * (clock.now - 1000.0) + 1e-6
    clock.now += buckets.wait("a") + 1e-9
    assert buckets.take("a") == 0


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=200), st.integers(0, 4), st.integers(0, 6))
def test_slots_are_never_more_than_allowed_and_none_is_lost(actions, per_key, total):
    slots, held = Slots(per_key, total), []
    for takes, key in actions:
        if takes:
            is_free = (not per_key or held.count(key) < per_key) and (not total or len(held) < total)
            assert slots.take(key) is is_free
            held += [key] * is_free
        elif key in held:
            held.remove(key)
            slots.release(key)
    for key in held:
        slots.release(key)
    assert not slots._taken


async def test_turns_of_a_key_come_in_order_and_another_key_does_not_wait():
    turns, order = Turns(2), []

    async def work(name, key):
        await turns.take(key)
        order.append(name)

    tasks = [asyncio.create_task(work(number, "a")) for number in range(4)] + [asyncio.create_task(work("other", "b"))]
    await asyncio.sleep(0)
    assert order == [0, 1, "other"]
    turns.release("a")
    turns.release("a")
    await asyncio.gather(*tasks)
    assert order == [0, 1, "other", 2, 3]
