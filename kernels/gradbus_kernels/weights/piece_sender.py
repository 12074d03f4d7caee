"""Brings tensors of mapped files to a GPU: threads read pieces into pinned buffers while others are copied from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradbus_kernels.weights.host_buffers import HostBuffers, bytes_of, event_after, pieces_of
from gradbus_kernels.weights.threads import SMALL_BYTES, weight_threads


class PieceSender:
    """Copies tensors to a device, in the order in which they are given. Belongs to one thread; keeps its buffers."""

    def __init__(self) -> None:
        self._buffers = HostBuffers()
        self._reading: deque[_Reading] = deque()
        self._copying: deque[tuple[torch.cuda.Event | None, Tensor]] = deque()
        """Buffers that the device reads, until these events."""

    def send(self, source: Tensor, target: Tensor, then: Callable[[], None]) -> None:
        """Begins to copy `source`, on the CPU, into `target`, contiguous and of its size and dtype.

        Neither may be used before `finish`, except by `then`: its work on the device comes after the copy, which is queued then.
        """
        flat = target.view(-1)
        for begin, piece in pieces_of(source, source.itemsize):
            self._read(piece, flat[begin : begin + len(piece)])
        self._reading.append(_Reading(None, then))
        while self._reading and self._reading[0].is_done():
            self._reading.popleft().copy()

    def finish(self) -> None:
        """Returns when all copies are done."""
        while self._reading:
            self._reading.popleft().copy()
        while self._copying:
            self._reclaim()

    def _read(self, piece: Tensor, target: Tensor) -> None:
        if piece.nbytes <= SMALL_BYTES:
            self._reading.append(_Reading(None, lambda: target.copy_(piece)))
            return
        buffer = self._take(target.is_cuda)
        elements = buffer[: piece.nbytes].view(piece.dtype)
        content, into = (np.frombuffer(bytes_of(tensor), np.uint8) for tensor in (piece, elements))

        def copy() -> None:
            target.copy_(elements, non_blocking=True)
            self._copying.append((event_after(target), buffer))

        self._reading.append(_Reading(weight_threads().submit(np.copyto, into, content), copy))

    def _take(self, pinned: bool) -> Tensor:
        while self._buffers.all_taken:
            if self._copying:
                self._reclaim()
            else:
                self._reading.popleft().copy()
        return self._buffers.take(pinned)

    def _reclaim(self) -> None:
        event, buffer = self._copying.popleft()
        if event is not None:
            event.synchronize()
        self._buffers.give_back(buffer)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A piece that a thread reads, or nothing, and what comes next."""

    reading: Future[None] | None
    next_step: Callable[[], object]

    def is_done(self) -> bool:
        return self.reading is None or self.reading.done()

    def copy(self) -> None:
        """Waits for the thread. Raises what it raised."""
        if self.reading is not None:
            self.reading.result()
        self.next_step()
