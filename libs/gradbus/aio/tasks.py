"""Tasks that never outlive the code that started them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

_REPEAT_SECONDS = 0.5
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Runs `work` beside the block and cancels it at the block's end. Raises its error there, unless the block itself raised."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        await cancel_and_wait(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def gather_or_cancel(work: Sequence[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Results in order. When one fails, the others are cancelled and have ended before its error is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)


async def map_bounded(work: Callable[[_Item], Coroutine[Any, Any, _Result]], items: Iterable[_Item], at_a_time: int) -> list[_Result]:
    """The results of `work` on each item, in order; few calls run at a time. When one fails, see `gather_or_cancel`."""
    turns = asyncio.Semaphore(at_a_time)

    async def in_turn(item: _Item) -> _Result:
        async with turns:
            return await work(item)

    return await gather_or_cancel([in_turn(item) for item in items])


async def run_to_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of `work`, which must have its own deadline. A cancellation meanwhile is raised after `work` has ended.

    An error of `work` comes before it: whoever catches that error must not go on for long, because the cancellation is lost.
    """
    task = asyncio.create_task(work)
    cancellation = await _wait_to_end(task)
    result = task.result()
    if cancellation is not None:
        raise cancellation
    return result


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancels `tasks` until they have ended. Once is not enough: a library's `wait_for` can lose a cancellation before Python 3.12.

    A cancellation of the caller meanwhile is raised after they have ended; raised at once, it would leave them running. `asyncio.gather`
    would raise it when the first of them has ended.
    """
    cancellation = await _wait_to_end(*tasks, cancelling=True)
    if cancellation is not None:
        raise cancellation


async def _wait_to_end(*tasks: asyncio.Task[Any], cancelling: bool = False) -> asyncio.CancelledError | None:
    """Waits until `tasks` have ended; returns the caller's last cancellation meanwhile."""
    cancellation: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        if cancelling:
            for task in running:
                task.cancel()
        try:
            await asyncio.wait(running, timeout=_REPEAT_SECONDS if cancelling else None)
        except asyncio.CancelledError as error:
            cancellation = error
    return cancellation
