import asyncio

import pytest

from gradbus.background import background, cancelled


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
    await cancelled(task)
    assert task.cancelled()
