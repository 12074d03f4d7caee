"""Blocking calls that may never return."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from gradbus.errors import RestartNeededError

_Result = TypeVar("_Result")
_ABANDONED_SECONDS = 5.0


async def in_own_thread(work: Callable[[], _Result], name: str) -> _Result:
    """Runs `work` in a daemon thread; returns its result or raises its error.

    A caller that is cancelled or times out leaves the thread behind. A thread of an executor would keep the process from ending
    for as long as `work` hangs.
    """
    return await _started(work, name)


async def in_run_thread(work: Callable[[], _Result], name: str) -> _Result:
    """Runs `work` on behalf of a run in a daemon thread; returns its result or raises its error. See `finished_or_restart`."""
    return await finished_or_restart(_started(work, name), name)


async def finished_or_restart(thread: asyncio.Future[_Result], name: str) -> _Result:
    """The result of a thread that works on behalf of a run.

    A cancelled caller waits a few seconds for the thread's end. Raises RestartNeededError if the thread goes on: only the end of the
    process ends it, and nothing of a run may compute or hold memory after the run.
    """
    deadline = None
    clock = asyncio.get_running_loop().time
    while not thread.done() and (deadline is None or clock() < deadline):
        try:
            await asyncio.wait({thread}, timeout=None if deadline is None else deadline - clock())
        except asyncio.CancelledError:
            deadline = deadline or clock() + _ABANDONED_SECONDS
    if not thread.done():
        raise RestartNeededError(
            f"the run is over and its thread {name!r} goes on after {_ABANDONED_SECONDS:.0f} s; the worker ends: start it again"
        )
    if deadline is not None:
        thread.exception()  # retrieved: the caller's cancellation comes first
        del thread
        raise asyncio.CancelledError  # a new one: the traceback of the first would keep the result
    return thread.result()


def _started(work: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: BaseException | None) -> None:
        if done.done():
            return  # the caller has left
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type] # None only where that is what `work` returns

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed to the caller
            failed = error
        except BaseException as error:  # noqa: BLE001 - a panic of a library: an error of the work, and no end of the caller's task
            failed = RuntimeError(f"{type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
