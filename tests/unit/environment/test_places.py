"""Who may execute a command next."""

import asyncio

import pytest

from gradbus_environment.worlds.turnstile import Places


class Crowd:
    """Commands of runs that hold their places until they are told to end."""

    def __init__(self, limit):
        self.places = Places(limit)
        self.held = []
        self.tasks = []

    async def ask(self, *runs):
        self.tasks += [asyncio.ensure_future(self._hold(run)) for run in runs]
        await asyncio.sleep(0.01)

    async def _hold(self, run):
        async with self.places.taken(run):
            self.held.append(run)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.held.remove(run)

    async def end(self, *numbers):
        for number in numbers:
            self.tasks[number].cancel()
        await asyncio.sleep(0.01)


async def test_a_run_leaves_one_place_and_who_has_the_fewest_comes_next():
    crowd = Crowd(4)
    await crowd.ask(*"aaaaa")
    assert crowd.held == list("aaa")
    await crowd.ask(*"bb")
    assert crowd.held == list("aaab")
    await crowd.ask("c")
    await crowd.end(0)
    assert crowd.held == list("aabc"), "not the fourth of a, nor the second of b, that waited for longer"
    await crowd.end(1)
    assert crowd.held == list("abcb") or crowd.held == list("abca")


@pytest.mark.parametrize("limit", [1, 2])
async def test_one_place_is_enough_and_who_gives_up_takes_none(limit):
    crowd = Crowd(limit)
    await crowd.ask(*"aaa")
    assert crowd.held == ["a"]
    await crowd.end(1, 0)
    assert crowd.held == ["a"]
    await crowd.end(2)
    await crowd.ask("b")
    assert crowd.held == ["b"]
    await crowd.end(3)
    assert not crowd.held
