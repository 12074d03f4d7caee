"""One at a time, in the order of arrival; those who wait may be turned away or give up."""

import asyncio

from gradbus_environment.worlds.turnstile import Turnstile


async def waiting(turns, count):
    tasks = [asyncio.ensure_future(turns.enter()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_one_at_a_time_in_the_order_of_arrival():
    turns = Turnstile()
    assert await turns.enter()
    first, second = await waiting(turns, 2)
    turns.leave()
    assert await first
    assert not second.done()
    turns.leave()
    assert await second
    turns.leave()
    assert not turns.is_taken


async def test_those_who_wait_may_be_turned_away_and_the_one_inside_stays():
    turns = Turnstile()
    await turns.enter()
    tasks = await waiting(turns, 3)
    assert turns.has_waiting
    turns.turn_away()
    assert await asyncio.gather(*tasks) == [False, False, False]
    assert turns.is_taken
    assert not turns.has_waiting


async def test_one_who_gives_up_holds_up_nobody():
    turns = Turnstile()
    await turns.enter()
    first, second = await waiting(turns, 2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    turns.leave()
    assert await second
    turns.leave()
    third = (await waiting(turns, 1))[0]
    assert await third
    fourth = (await waiting(turns, 1))[0]
    turns.leave()
    fourth.cancel()  # it had been let in, and not yet noticed
    await asyncio.gather(fourth, return_exceptions=True)
    assert not turns.is_taken
