"""The order of lease and tenant in a turn: nothing is on the device without the lease."""

import asyncio

import pytest

from gradbus.process.device_turns import DeviceTurns


class Recorded:
    """A lease and a tenant that note what is asked of them."""

    def __init__(self):
        self.calls = []

    async def take(self):
        self.calls.append("take")

    async def give_back(self):
        self.calls.append("give back")

    async def release(self):
        self.calls.append("release")

    async def resume(self):
        self.calls.append("resume")

    async def wanted(self, is_idle):
        self.calls.append(f"wanted {is_idle()}")


@pytest.fixture
def both():
    return Recorded()


async def test_a_tenant_frees_its_memory_before_the_lease_goes_and_takes_it_after_the_lease_came(both):
    turns = DeviceTurns(both, both)
    await turns.begin()
    assert both.calls == [], "its first turn has begun already"
    await turns.end()
    await turns.end()
    assert (both.calls, turns.is_on_device) == (["release", "give back"], False)
    await turns.begin()
    await turns.begin()
    assert (both.calls[2:], turns.is_on_device) == (["take", "resume"], True)
    await turns.wanted(lambda: True)
    assert both.calls[-1] == "wanted True"
    assert turns.switching_seconds() > 0
    assert turns.switching_seconds() == 0


async def test_a_device_of_its_own_is_never_left(both):
    turns = DeviceTurns(None, both)
    await turns.end()
    await turns.begin()
    wanted = asyncio.create_task(turns.wanted(lambda: True))
    await asyncio.sleep(0.02)
    assert (both.calls, turns.is_on_device, turns.switching_seconds(), wanted.done()) == ([], True, None, False)
    wanted.cancel()


async def test_a_tenant_that_cannot_release_keeps_the_lease(both):
    async def fails():
        raise RuntimeError("planted")

    both.release = fails
    turns = DeviceTurns(both, both)
    with pytest.raises(RuntimeError, match="planted"):
        await turns.end()
    assert (both.calls, turns.is_on_device) == ([], True)
