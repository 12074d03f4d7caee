"""Followers are woken in small groups, and no feed waits for another one's crowd."""

import asyncio

import pytest

from gradbus_gateway.events import pacer as module
from gradbus_gateway.events.pacer import Pacer


@pytest.fixture
def feed():
    """Makes a feed with followers to wake, and notes how many were woken at a time."""
    woken = []

    def make(name, followers):
        left = [followers]

        def wake(most):
            count = min(most, left[0])
            left[0] -= count
            woken.append((name, count))
            return count

        return wake

    make.woken = woken
    return make


async def test_feeds_take_turns_in_groups(feed, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0)
    pacer = Pacer()
    for name in "ab":
        pacer.ask(feed(name, 60))
    async with asyncio.timeout(30):
        while sum(count for _, count in feed.woken) < 120:  # noqa: ASYNC110 - there is nothing to wait for but the loop
            await asyncio.sleep(0)
    assert feed.woken == [("a", 25), ("b", 25), ("a", 25), ("b", 25), ("a", 10), ("b", 10)]


async def test_all_followers_together_wait_between_two_groups(feed):
    pacer, clock = Pacer(), asyncio.get_running_loop().time
    began = clock()
    for name in "abcd":
        pacer.ask(feed(name, 25))
    async with asyncio.timeout(30):
        while len(feed.woken) < 4:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
    assert clock() - began >= 3 * module._PAUSE_SECONDS


async def test_a_feed_that_asks_again_meanwhile_waits_for_the_pause_too(feed, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 3600.0)
    pacer = Pacer()
    pacer.ask(feed("a", 1))
    await asyncio.sleep(0.01)
    pacer.ask(feed("b", 1))
    await asyncio.sleep(0.01)
    assert feed.woken == [("a", 1)]
    pacer._wake()  # as after the pause
    assert feed.woken == [("a", 1), ("b", 1)]
