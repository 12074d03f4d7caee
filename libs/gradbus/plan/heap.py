"""What glibc keeps of memory that a trainer on a CPU has freed.

Tensors of less than 32 MiB lie side by side in one heap (`gradbus.memory.allocator`). Between those that a forward pass keeps stand
others that are freed at once, and not every later tensor fits into their places. Page faults instead would take half as long as the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_LARGEST: Final = 32 << 20
"""Bytes from which a tensor has pages of its own, which go back to the system."""
_SHARE: Final = 0.35
"""Of the tensors in the heap, what lies unused between them: measured (benchmarks/results/plans.md)."""
_BESIDE_ADAPTERS: Final = 0.85
"""The same where each product with an adapter makes three tensors, of which one stays."""


def unused_in_heap(tensors: Iterable[int], adapters: bool) -> int:
    """Bytes, of `tensors` with these bytes that a pass keeps."""
    return int((_BESIDE_ADAPTERS if adapters else _SHARE) * sum(size for size in tensors if size < _LARGEST))
