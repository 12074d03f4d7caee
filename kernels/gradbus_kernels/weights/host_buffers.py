"""Buffers in host memory between a GPU and threads of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

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


class HostBuffers:
    """Buffers of PIECE_BYTES, `count` at most, made when first needed and kept. One thread takes them, any gives them back.

    For a GPU they are pinned: a copy between it and other memory is several times slower, and to pin a buffer takes longer than to fill it.
    """

    def __init__(self) -> None:
        self.count = thread_count() + 2
        """One for each thread, one that is copied, one that waits."""
        self._free: SimpleQueue[Tensor] = SimpleQueue()
        self._made = 0

    @property
    def all_taken(self) -> bool:
        """Whether `take` would wait."""
        return self._free.empty() and self._made == self.count

    def take(self, pinned: bool) -> Tensor:
        """A buffer, as bytes. Waits until one is free. Raises RuntimeError where there is no memory for one."""
        if self._free.empty() and self._made < self.count:
            buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=pinned)
            self._made += 1  # only now: one that could not be made would be waited for
            return buffer
        return self._free.get()

    def give_back(self, buffer: Tensor) -> None:
        """Nothing uses the buffer any more."""
        self._free.put(buffer)


def event_after(copy_on: Tensor) -> torch.cuda.Event | None:
    """Happens when the copies begun so far on this tensor's GPU are done; none where another device or a test's CPU has done them."""
    if not copy_on.is_cuda:
        return None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call] # a thread that waits takes no core
    event.record(torch.cuda.current_stream(copy_on.device))
    return event
