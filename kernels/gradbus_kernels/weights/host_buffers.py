"""Buffers in host memory between a GPU and threads of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradbus_kernels.weights.digest_tree import PIECE_BYTES
from gradbus_kernels.weights.threads import thread_count


def pieces_of(tensor: Tensor, item_bytes: int) -> Iterator[tuple[int, Tensor]]:
    """The tensor's elements in row-major order, as many at a time as have PIECE_BYTES at `item_bytes` each; with the first one's index."""
    size = PIECE_BYTES // item_bytes
    flat = tensor.detach().reshape(-1)
    return ((begin, flat[begin : begin + size]) for begin in range(0, len(flat), size))


def on_host(tensor: Tensor) -> bool:
    """Whether it is in the CPU's memory."""
    return tensor.device.type == "cpu"


def bytes_of(elements: Tensor) -> memoryview:
    """A view of the bytes of a contiguous tensor on the CPU."""
    return elements.reshape(-1).view(torch.uint8).numpy().data


@dataclass(slots=True, eq=False)
class Buffer:
    """A buffer, and what still uses it: a thread's work on it, or a copy from it to the device."""

    memory: Tensor
    work: Future[Any] | None = None
    copy: torch.cuda.Event | None = None

    def settle(self) -> None:
        """Waits until nothing uses it; what the work raised is its caller's."""
        if self.work is not None:
            wait([self.work])
        if self.copy is not None:
            self.copy.synchronize()
        self.work = self.copy = None


class HostBuffers:
    """Buffers of PIECE_BYTES that take turns: `count` of them, made when first needed and kept. Belongs to one thread.

    For a GPU they are pinned: a copy between it and other memory is several times slower, and to pin a buffer takes longer than to fill it.
    """

    def __init__(self) -> None:
        self.count = thread_count() + 2
        """One for each thread, one that is copied, one that waits."""
        self._made: list[Buffer] = []
        self._turn = 0

    def take(self, dtype: torch.dtype, count: int, pinned: bool) -> tuple[Buffer, Tensor]:
        """The buffer that was taken longest ago, once nothing uses it, and its first `count` elements."""
        if self._turn == len(self._made):
            self._made.append(Buffer(torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=pinned)))
        buffer = self._made[self._turn]
        self._turn = (self._turn + 1) % self.count
        buffer.settle()
        return buffer, buffer.memory[: count * dtype.itemsize].view(dtype)

    def settle(self) -> None:
        """Waits until nothing uses any of them."""
        for buffer in self._made:
            buffer.settle()


def event_after(copy_on: Tensor) -> torch.cuda.Event | None:
    """Happens when the copies begun so far on this tensor's GPU are done; none where another device or a test's CPU has done them."""
    if not copy_on.is_cuda:
        return None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call] # a thread that waits takes no core
    event.record(torch.cuda.current_stream(copy_on.device))
    return event
