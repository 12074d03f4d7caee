"""One task looks at an engine's progress for all calls to it."""

import asyncio

import pytest

from gradbus.errors import EngineHungError
from gradbus_rollout.engines.progress_watch import ProgressWatch


class Counted:
    """An engine whose count of progress the test sets."""

    name = "counted"

    def __init__(self):
        self.count = self.looks = 0
        self.looked = asyncio.Event()
        self.fault = None

    async def progress(self):
        self.looks += 1
        self.looked.set()
        if self.fault is not None:
            raise self.fault
        return self.count


async def looks(engine, number):
    """Returns after so many looks more."""
    until = engine.looks + number
    while engine.looks < until:
        engine.looked.clear()
        await asyncio.wait_for(engine.looked.wait(), 60)


async def call(watch, done, work="work"):
    async with watch.over(work):
        await done.wait()


async def test_all_calls_share_one_task_and_end_when_the_engine_hangs():
    engine, never = Counted(), asyncio.Event()
    watch = ProgressWatch(engine, 0.4)
    before = asyncio.all_tasks()
    calls = [asyncio.create_task(call(watch, never, f"{n} groups")) for n in range(100)]
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks() - before) == len(calls) + 1
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(error).partition(" to do")[0] for error in ended] == [f"counted has {n} groups" for n in range(100)]
    assert {type(error) for error in ended} == {EngineHungError}
    assert engine.looks < 100, "each look may ask a server to draw a token"


async def test_progress_and_a_release_keep_calls_and_the_task_ends_with_the_last_one():
    engine, done = Counted(), asyncio.Event()
    watch = ProgressWatch(engine, 0.08)
    before = asyncio.all_tasks()
    calling = asyncio.create_task(call(watch, done))
    await asyncio.sleep(0)
    (looking,) = asyncio.all_tasks() - before - {calling}
    for _ in range(20):  # more than two limits
        engine.count += 1
        await looks(engine, 1)
    watch.is_released = True
    await looks(engine, 20)
    assert not calling.done()
    done.set()
    await calling
    await asyncio.wait_for(looking, 60)
    watch.is_released = False
    async with watch.over("another call"):
        await looks(engine, 2)


async def test_a_call_that_begins_late_has_a_limit_of_its_own():
    engine, never, limit = Counted(), asyncio.Event(), 0.4
    watch, clock = ProgressWatch(engine, limit), asyncio.get_running_loop().time
    first = asyncio.create_task(call(watch, never))
    await looks(engine, 5)
    began = clock()
    late = asyncio.create_task(call(watch, never))
    ended = await asyncio.gather(first, late, return_exceptions=True)
    assert {type(error) for error in ended} == {EngineHungError}
    assert clock() - began >= limit, "whoever is slow, it ends no earlier"


async def test_an_end_that_takes_long_is_waited_for():
    engine, may_end = Counted(), asyncio.Event()
    watch = ProgressWatch(engine, 0.08)

    async def slow():
        async with watch.over("work"):
            try:
                await asyncio.Event().wait()
            finally:
                await may_end.wait()

    calling = asyncio.create_task(slow())
    await looks(engine, 40)
    assert not calling.done()
    may_end.set()
    with pytest.raises(EngineHungError):
        await calling


async def test_a_look_that_fails_ends_the_calls_with_its_error():
    engine, never = Counted(), asyncio.Event()
    watch = ProgressWatch(engine, 0.08)
    calls = [asyncio.create_task(call(watch, never)) for _ in range(2)]
    await looks(engine, 2)
    engine.fault = OSError("no such device")
    assert [str(error) for error in await asyncio.gather(*calls, return_exceptions=True)] == ["no such device"] * 2


async def test_a_timeout_of_the_call_itself_and_its_error_stay_what_they_are():
    watch = ProgressWatch(Counted(), 60.0)
    for error in (TimeoutError("a server's"), ValueError("another")):
        with pytest.raises(type(error), match=str(error)):
            async with watch.over("work"):
                raise error
    await watch.close()
    await watch.close()
