"""CPU seconds and memory of processes by name; and how often one syncs a file, a slow disk's limit long before the processor's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from gradbus.process.usage import Usage, tree_usage

_SYNCS: Final = ("fsync", "fdatasync")


def usage(roots: Mapping[str, int]) -> dict[str, Usage]:
    """Name to usage of the process tree under its pid. An ended tree has no entry."""
    found = {name: tree_usage(pid) for name, pid in roots.items()}
    return {name: taken for name, taken in found.items() if taken is not None}


def cpu_seconds(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """Usage of each process between two readings, largest first; a restarted process counts from its start."""
    spent = {}
    for name, now in after.items():
        then = before[name].cpu_seconds if name in before else 0.0
        spent[name] = now.cpu_seconds - then if now.cpu_seconds >= then else now.cpu_seconds
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


async def syncs_per_second(pid: int, seconds: float) -> float | None:
    """Counted for so long by strace, which slows the process; None where there is no strace, or where it may not look."""
    program = shutil.which("strace")
    if program is None:
        return None
    trace = f"trace={','.join(_SYNCS)}"
    tracing = await asyncio.create_subprocess_exec(program, "-f", "-c", "-e", trace, "-p", str(pid), stderr=asyncio.subprocess.PIPE)
    assert tracing.stderr is not None
    await tracing.stderr.readline()  # it is attached; or why it is not
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await tracing.wait()
    if tracing.returncode is not None:
        return None  # it ended by itself: it may not trace
    tracing.send_signal(signal.SIGINT)
    _, table = await tracing.communicate()
    return counted_syncs(table.decode()) / seconds


@asynccontextmanager
async def slow_syncs(pid: int, seconds: float) -> AsyncIterator[None]:
    """Makes each sync of a process take so much longer inside the block, by strace, as on a slower disk. Raises OSError without strace."""
    delayed = [f"trace={','.join(_SYNCS)}", f"inject={','.join(_SYNCS)}:delay_exit={round(1e6 * seconds)}"]
    options = [part for one in delayed for part in ("-e", one)]
    tracing = await asyncio.create_subprocess_exec("strace", "-f", "-qq", "-o", os.devnull, *options, "-p", str(pid))
    try:
        yield
    finally:
        tracing.send_signal(signal.SIGINT)
        await tracing.wait()


def counted_syncs(table: str) -> int:
    """Calls in a table of `strace -c`."""
    rows = [line.split() for line in table.splitlines()]
    return sum(int(row[3]) for row in rows if row and row[-1] in _SYNCS)
