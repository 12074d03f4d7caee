"""Tasks that run beside a block of code, and surely end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

_INSIST_SECONDS = 0.5
_Result = TypeVar("_Result")


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Runs `work` inside the block. What it raised is raised at the block's end, unless the block itself raised."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        await cancel_and_wait(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def gathered(work: Sequence[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Results in order; when one fails the others are cancelled, and have ended, before it is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await asyncio.gather(*(cancel_and_wait(task) for task in tasks))


async def until_done(work: Coroutine[Any, Any, _Result]) -> _Result:
    """What `work`, which keeps a deadline of its own, gives. A cancellation meanwhile is raised once it has ended."""
    task = asyncio.create_task(work)
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            interruption = error
    result = task.result()
    if interruption is not None:
        raise interruption
    return result


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancels `task` until it has ended: before Python 3.12 `wait_for` can swallow a cancellation that meets a result."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_INSIST_SECONDS)
