import asyncio
import contextlib

import pytest

from gradbus.aio.tasks import background, cancel_and_wait, gather_or_cancel, map_bounded, run_to_end


async def test_the_work_ends_with_the_block():
    async with background(asyncio.sleep(60), "work") as task:
        assert not task.done()
    assert task.cancelled()


async def test_what_the_work_raised_is_raised_at_the_end():
    async def fail():
        raise ValueError("the work")

    with pytest.raises(ValueError, match="the work"):
        async with background(fail(), "work"):
            await asyncio.sleep(0)


async def test_the_blocks_own_error_comes_first():
    async def fail():
        raise ValueError("the work")

    async def block():
        async with background(fail(), "work"):
            await asyncio.sleep(0)
            raise KeyError

    with pytest.raises(KeyError):
        await block()


async def test_work_that_swallows_one_cancellation_is_cancelled_again():
    async def stubborn():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    assert task.cancelled()


async def test_a_caller_that_is_cancelled_again_still_waits_for_its_work():
    cancelled = []

    async def work():
        while len(cancelled) < 3:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(asyncio.current_task())

    async def caller():
        async with background(work(), "work"):
            await asyncio.sleep(60)

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    assert task.cancelled()
    assert cancelled[0].done()


async def test_a_caller_of_several_that_is_cancelled_again_waits_for_the_last():
    """As a worker that leaves a run whose episodes still have a word to send: its connection is closed next."""
    ended, ends = [], [asyncio.Event() for _ in range(3)]

    async def work(n):
        try:
            await asyncio.sleep(60)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await run_to_end(ends[n].wait())
            ended.append(n)

    task = asyncio.create_task(gather_or_cancel(list(map(work, range(3)))))
    for n in range(3):
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        ends[n].set()
    await cancel_and_wait(task)
    assert task.cancelled()
    assert ended == [0, 1, 2]


async def test_what_must_not_be_left_half_done_ends_before_a_cancellation_does():
    ends = asyncio.Event()

    async def work():
        await ends.wait()
        return "done"

    task = asyncio.create_task(run_to_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    ends.set()
    await asyncio.wait({task})
    assert task.cancelled()
    assert await run_to_end(work()) == "done"


async def test_what_failed_meanwhile_comes_before_the_cancellation():
    async def fail():
        await asyncio.sleep(0)
        raise ValueError("the work")

    task = asyncio.create_task(run_to_end(fail()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ValueError, match="the work"):
        await task


async def test_a_bounded_map_keeps_the_order_and_runs_few_at_a_time():
    running, most = 0, 0

    async def work(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return -item

    assert await map_bounded(work, range(10), 3) == [-item for item in range(10)]
    assert most == 3


async def test_a_bounded_map_leaves_nothing_behind_when_one_fails():
    ended = []

    async def work(item):
        try:
            await asyncio.sleep(60 * item)
            raise ValueError("the first")
        finally:
            ended.append(item)

    with pytest.raises(ValueError, match="the first"):
        await map_bounded(work, range(10), 3)
    assert len(asyncio.all_tasks()) == 1
    assert len(ended) <= 4, "of the others none began"
