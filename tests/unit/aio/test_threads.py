"""Blocking work in a thread that is not joined."""

import asyncio
import subprocess
import sys
import threading

import pytest

from gradbus.aio.threads import in_own_thread

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
