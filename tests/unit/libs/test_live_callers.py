"""Callers that hold a call open, and those that are gone."""

import asyncio

import pytest

from gradbus.rpc import live_callers as module
from gradbus.rpc.live_callers import LiveCallers


@pytest.fixture
def live(monkeypatch):
    monkeypatch.setattr(module, "HELD_SECONDS", 0.1)
    monkeypatch.setattr(module, "_PAUSED_SECONDS", 0.3)
    return LiveCallers(0.05)


async def test_a_caller_whose_connection_ends_is_gone_a_moment_later_and_once(live):
    holding = asyncio.create_task(live.hold("a"))
    await asyncio.sleep(0.02)
    assert live.take_gone() == set()
    holding.cancel()
    await asyncio.wait({holding})
    assert live.take_gone() == set()
    await asyncio.sleep(0.06)
    assert live.take_gone() == {"a"}
    assert live.take_gone() == set()


async def test_a_caller_that_comes_back_at_once_is_not_gone(live):
    first = asyncio.create_task(live.hold("a"))
    await asyncio.sleep(0.02)
    first.cancel()
    second = asyncio.create_task(live.hold("a"))
    await asyncio.sleep(0.08)
    assert live.take_gone() == set()
    await second


async def test_a_caller_that_was_answered_may_stand_still_for_longer(live):
    await live.hold("a")
    await asyncio.sleep(0.15)
    assert live.take_gone() == set()
    await asyncio.sleep(0.2)
    assert live.take_gone() == {"a"}


async def test_a_call_is_answered_when_there_is_something_to_say_and_if_there_is_none_then_the_next_one(live, monkeypatch):
    monkeypatch.setattr(module, "HELD_SECONDS", 60)
    holding = asyncio.create_task(live.hold("a"))
    await asyncio.sleep(0.02)
    live.answer("a")
    live.answer("unknown")
    await asyncio.wait_for(holding, 5)
    live.answer("a")
    await asyncio.wait_for(live.hold("a"), 5)
    third, other = asyncio.create_task(live.hold("a")), asyncio.create_task(live.hold("b"))
    await asyncio.sleep(0.1)
    assert not third.done()
    assert not other.done()
    live.end()
    await asyncio.wait_for(asyncio.gather(third, other, live.hold("new")), 5)
    assert live.take_gone() == set()


async def test_one_that_only_opened_is_gone_if_it_never_holds_a_call(live):
    live.note("")
    live.note("a")
    assert live.take_gone() == set()
    await asyncio.sleep(0.35)
    assert live.take_gone() == {"a"}


async def test_one_that_makes_other_calls_lives_without_a_call_that_it_holds(live):
    for _ in range(4):
        live.note("a")
        await asyncio.sleep(0.15)
        assert live.take_gone() == set()
    await asyncio.sleep(0.2)
    assert live.take_gone() == {"a"}


async def test_one_that_ends_after_its_other_calls_is_gone_as_soon_as_any(live):
    holding = asyncio.create_task(live.hold("a"))
    await asyncio.sleep(0.02)
    live.note("a")
    holding.cancel()
    await asyncio.sleep(0.08)
    assert live.take_gone() == {"a"}


async def test_the_end_answers_all_calls(live, monkeypatch):
    monkeypatch.setattr(module, "HELD_SECONDS", 60.0)
    holding = asyncio.create_task(live.hold("a"))
    await asyncio.sleep(0)
    live.end()
    await asyncio.wait_for(holding, 1)
