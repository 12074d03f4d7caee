"""What the allocator of the C library keeps. Only glibc's can be told; elsewhere these do nothing."""

from __future__ import annotations

import ctypes
from typing import Any, Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_KEPT: Final = 256 << 20
"""Bytes at the end of the heap that stay with the process."""
_LARGEST: Final = 32 << 20
"""Bytes from which an allocation gets pages of its own; glibc takes no more."""
_LARGE: Final = 4 << 20
"""The same for a process that is sparing: below it are the many tensors of few rows."""


def trim_memory() -> None:
    """Returns to the system what the allocator keeps of freed memory. It takes some milliseconds and lets other threads compute."""
    _call("malloc_trim", 0)


def share_arenas(most: int) -> None:
    """Lets all threads that are still to come allocate from at most `most` arenas.

    By default each thread gets one, of which it returns little once somebody else's block lies at its end. For a process whose threads
    allocate less than they compute or wait.
    """
    _call("mallopt", _ARENA_MAX, most)


def keep_freed_memory(*, sparing: bool = False) -> None:
    """Keeps up to 256 MiB of freed memory, until `trim_memory`.

    For a process that allocates the same again and again: glibc may return a tiny model's tensors to the system in each step, and
    2,000 page faults take a sixth of the next one. `sparing`: large tensors go back all the same, for a process that had better take
    longer than hold what it does not use: gaps between tensors can be more than all that is in use.
    """
    _call("mallopt", _TRIM_THRESHOLD, _KEPT)
    _call("mallopt", _MMAP_THRESHOLD, _LARGE if sparing else _LARGEST)


def _call(name: str, *arguments: Any) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
