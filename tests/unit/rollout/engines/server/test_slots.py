"""The bound on samples in flight, and the door that a load closes."""

import asyncio

import pytest

from gradbus_rollout.engines.server.slots import Slots


async def turns(number=50):
    """Lets every task that can run do so."""
    for _ in range(number):
        await asyncio.sleep(0)


async def occupy(slots, release, most):
    async with slots.taken():
        most.append(slots.used)
        await release.wait()


async def test_never_more_are_in_than_there_are_slots():
    slots, release, most = Slots(3), asyncio.Event(), []
    tasks = [asyncio.create_task(occupy(slots, release, most)) for _ in range(10)]
    await turns()
    assert slots.used == 3
    release.set()
    await asyncio.gather(*tasks)
    assert (max(most), len(most), slots.used) == (3, 10, 0)


async def test_nobody_enters_closed_slots_and_idle_comes_when_all_are_out():
    slots, release, most = Slots(2), asyncio.Event(), []
    first = asyncio.create_task(occupy(slots, release, most))
    await turns()
    async with slots.closed():
        late = asyncio.create_task(occupy(slots, release, most))
        await turns()
        assert slots.used == 1
        release.set()
        await asyncio.wait_for(slots.idle(), 60)
        await turns()
        assert not late.done()
    await asyncio.gather(first, late)


async def test_a_waiter_that_is_cancelled_frees_its_slot():
    slots, release, most = Slots(1), asyncio.Event(), []
    async with slots.closed():
        waiting = asyncio.create_task(occupy(slots, release, most))
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    release.set()
    await asyncio.wait_for(occupy(slots, release, most), 60)
