"""A process of this Python that does one order, and is gone when it has answered or its time is over."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import NamedTuple


class ProcessAnswer(NamedTuple):
    """What a process has written to its standard output, and the status with which it ended; negative for a signal."""

    content: bytes
    status: int


async def answer_of(module: str, order: bytes, environment: Mapping[str, str], seconds: float) -> ProcessAnswer:
    """Runs `module` with one line of standard input, which stays open: its end tells the process that this one is gone.

    The content is empty if the process ended before it read the order. Raises TimeoutError, when the process is killed.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(environment),
    )
    assert process.stdin is not None  # noqa: S101 - they are pipes
    assert process.stdout is not None  # noqa: S101
    try:
        async with asyncio.timeout(seconds):
            process.stdin.write(order + b"\n")
            content = await process.stdout.read()
            await process.wait()
    except ConnectionError:
        content = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return ProcessAnswer(content, await process.wait())
