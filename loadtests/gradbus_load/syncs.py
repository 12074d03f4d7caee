"""How often a process syncs a file to disk: on a slow disk that is its limit, long before the processor is."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from typing import Final

_CALLS: Final = "fsync,fdatasync"


async def syncs_per_second(pid: int, seconds: float) -> float | None:
    """Counted for so long by strace, which slows the process; None where there is no strace, or where it may not look."""
    program = shutil.which("strace")
    if program is None:
        return None
    pipe = asyncio.subprocess.PIPE
    tracing = await asyncio.create_subprocess_exec(program, "-f", "-c", "-e", f"trace={_CALLS}", "-p", str(pid), stderr=pipe)
    assert tracing.stderr is not None
    await tracing.stderr.readline()  # it is attached; or why it is not
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await tracing.wait()
    if tracing.returncode is not None:
        return None  # it ended by itself: it may not trace
    tracing.send_signal(signal.SIGINT)
    _, table = await tracing.communicate()
    return counted(table.decode()) / seconds


def counted(table: str) -> int:
    """Calls in a table of `strace -c`."""
    rows = [line.split() for line in table.splitlines()]
    return sum(int(row[3]) for row in rows if row and row[-1] in _CALLS.split(","))
