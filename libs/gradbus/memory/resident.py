"""What a process holds of the machine's memory, and how much of it is code."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gradbus.memory.allocator import trim_memory

_RSS: Final = "RssAnon:"
_code: dict[str, int] = {}
"""Bytes by imported module."""


def return_memory() -> int:
    """Bytes that this process holds after it has returned what is free; 0 where that is not known."""
    if sys.platform != "linux":
        return 0
    gc.collect()
    trim_memory()
    status = Path("/proc/self/status").read_text()
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(_RSS)), 0)


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Around an import of a large `module` that few runs need. Its memory stays for the next of them: no run has left it."""
    before = None if module in sys.modules else return_memory()
    yield
    if before is not None:
        _code[module] = max(return_memory() - before, 0)


def code_bytes() -> int:
    """Bytes of the modules that were imported within `importing`."""
    return sum(_code.values())
