"""Free memory of the GPUs as their driver counts it: an engine's answer that it has freed memory is no proof."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from typing import Final

_QUERY: Final = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
_ANSWER_SECONDS: Final = 30.0
"""A driver that takes longer is broken."""
_GONE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.2
_STEADY_LOOKS: Final = 3
"""Looks without more free memory after which a release is over."""


async def free_mebibytes() -> int | None:
    """Of all GPUs that this process sees, together; None without a driver that answers."""
    if shutil.which(_QUERY[0]) is None:
        return None
    process = await asyncio.create_subprocess_exec(*_QUERY, *_seen(), stdout=PIPE, stderr=DEVNULL)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            output, _ = await process.communicate()
        return sum(map(int, output.split())) if process.returncode == 0 else None
    except (TimeoutError, ValueError):
        return None
    finally:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(TimeoutError):  # one that hangs in the kernel does not end
                async with asyncio.timeout(_GONE_SECONDS):
                    await process.wait()


def _seen() -> Sequence[str]:
    """The flag that chooses GPUs: the driver's tool does not look at CUDA's variable, and others' memory comes and goes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "")
    return (f"--id={visible}",) if visible else ()


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
