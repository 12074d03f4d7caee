"""Memory limits of the stack's processes: their defaults, and the watch that enforces them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from pydantic import ByteSize, TypeAdapter, ValidationError

from gradbus.errors import StackError
from gradbus.process.usage import tree_usage

SHARES: Final[Mapping[str, float]] = {
    "trainer": 0.45,
    "rollout": 0.35,
    "reference": 0.15,
    "reward": 0.2,
    "environment": 0.2,
    "agent": 0.1,
    "conductor": 0.15,
    "gateway": 0.1,
    "weight_store": 0.1,
}
"""Part of the machine's memory that all processes of a role may take together; one run never needs all roles' parts at once."""
_LEAST: Final = 1 << 30
_LEAST_WITH_TOKENIZERS: Final = 2 << 30
"""For the roles that also hold a tokenizer's process, which may take 1 GiB."""
_WITH_TOKENIZERS: Final = frozenset({"gateway", "rollout"})
_LOOK_SECONDS: Final = 1.0
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")
_SIZE: Final = TypeAdapter(ByteSize)


def parse_limits(given: Iterable[str]) -> dict[str, int]:
    """Bytes by role from `ROLE=SIZE`, e.g. `trainer=8GiB`. Raises StackError."""
    limits = {}
    for text in given:
        role, _, size = text.partition("=")
        try:
            limits[role] = int(_SIZE.validate_python(size))
        except ValidationError:
            limits[role] = 0
        if role not in SHARES or limits[role] < 1:
            raise StackError(f"--memory {text!r} is no limit; write ROLE=SIZE, e.g. trainer=8GiB, with a role of {', '.join(SHARES)}")
    return limits


def default_limit(role: str, count: int) -> int:
    """Bytes that one of `count` processes of a role may take: its part of the role's share, at least 1 GiB, or 2 GiB with a tokenizer."""
    least = _LEAST_WITH_TOKENIZERS if role in _WITH_TOKENIZERS else _LEAST
    return max(least, int(SHARES[role] * _machine_memory() / count))


def _machine_memory() -> int:
    """Bytes of this machine, or of the container that this process runs in."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, int(_CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return machine


async def watch_memory(limits: Callable[[], Mapping[int, int]], exceeded: Callable[[int, int], None]) -> None:
    """Calls `exceeded` with a pid and its bytes when that process and its descendants hold more than its limit; runs until cancelled.

    Counts anonymous and shared memory, not mapped files, which the system can take back. `limits` gives bytes by pid.
    """
    while True:
        for pid, limit in limits().items():
            taken = tree_usage(pid)
            if taken is not None and taken.held_bytes > limit:
                exceeded(pid, taken.held_bytes)
        await asyncio.sleep(_LOOK_SECONDS)
