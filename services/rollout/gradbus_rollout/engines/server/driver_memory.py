"""Free memory of the GPUs as their driver counts it: an engine's answer that it has freed memory is no proof."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from typing import Final

_QUERY: Final = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
_LOOK_SECONDS: Final = 0.2
_STEADY_LOOKS: Final = 3
"""Looks without more free memory after which a release is over."""


async def free_mebibytes() -> int | None:
    """Of all GPUs together; None without a driver that answers."""
    if shutil.which(_QUERY[0]) is None:
        return None
    process = await asyncio.create_subprocess_exec(*_QUERY, stdout=PIPE, stderr=DEVNULL)
    output, _ = await process.communicate()
    with contextlib.suppress(ValueError):
        return sum(map(int, output.split()))
    return None


async def until_freed(before: int | None) -> None:
    """Returns when there is more free memory than `before`, and it grows no more; at once without a driver. Cancel it at a deadline."""
    if before is None:
        return
    most, steady = before, 0
    while steady < _STEADY_LOOKS or most == before:
        await asyncio.sleep(_LOOK_SECONDS)
        found = await free_mebibytes() or 0
        steady = 0 if found > most else steady + 1
        most = max(most, found)
