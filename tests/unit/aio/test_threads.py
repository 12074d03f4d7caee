"""Blocking work in a thread that is not joined."""

import asyncio
import subprocess
import sys
import threading

import pytest

from gradbus.aio import threads
from gradbus.aio.tasks import cancel_and_wait
from gradbus.aio.threads import in_own_thread, in_run_thread
from gradbus.errors import RestartNeededError

HANGS = """
import asyncio, threading
from gradbus.aio.threads import in_own_thread

async def main():
    try:
        async with asyncio.timeout(0.1):
            await in_own_thread(threading.Event().wait, "hangs")
    except TimeoutError:
        print("went on")

asyncio.run(main())
"""


async def test_what_the_work_returns_or_raises_is_handed_on():
    assert await in_own_thread(lambda: threading.current_thread().name, "apart") == "apart"
    with pytest.raises(ZeroDivisionError):
        await in_own_thread(lambda: 1 // 0, "fails")


async def test_work_that_ends_after_its_caller_went_on_is_forgotten():
    late = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await in_own_thread(late.wait, "late")
    late.set()
    assert await in_own_thread(lambda: 1, "next") == 1


def test_a_process_ends_while_such_a_thread_hangs():
    answer = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stdout) == (0, "went on\n"), answer.stderr


async def test_a_run_that_is_over_waits_for_the_end_of_its_thread():
    go_on = threading.Event()
    task = asyncio.create_task(in_run_thread(go_on.wait, "load"))
    await asyncio.sleep(0.01)
    cancelling = asyncio.create_task(cancel_and_wait(task))
    await asyncio.sleep(0.01)
    assert not task.done()
    go_on.set()
    await cancelling
    assert task.cancelled()


async def test_a_thread_that_goes_on_after_its_run_ends_the_process(monkeypatch):
    monkeypatch.setattr(threads, "_ABANDONED_SECONDS", 0.1)
    go_on = threading.Event()
    task = asyncio.create_task(in_run_thread(go_on.wait, "load"))
    await asyncio.sleep(0.01)
    await cancel_and_wait(task)
    go_on.set()
    with pytest.raises(RestartNeededError, match="'load' goes on"):
        task.result()


async def test_a_panic_of_a_library_is_an_error_of_the_work():
    class PanicException(BaseException):  # as Rust libraries raise it: no Exception
        pass

    def panic():
        raise PanicException("index out of bounds")

    with pytest.raises(RuntimeError, match="PanicException: index out of bounds"):
        await in_run_thread(panic, "load")
