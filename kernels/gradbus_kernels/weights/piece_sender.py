"""Brings tensors of mapped files to a GPU: threads read pieces into pinned buffers while others are copied from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from torch import Tensor

from gradbus_kernels.weights.host_buffers import HostBuffers, bytes_of, event_after, pieces_of
from gradbus_kernels.weights.threads import submit


class PieceSender:
    """Copies tensors to a device, in the order in which they are given. Belongs to one thread; keeps its buffers."""

    def __init__(self) -> None:
        self._buffers = HostBuffers()
        self._steps: deque[Callable[[], None]] = deque()
        """What is left to do by this thread."""
        self._reading = 0
        """Pieces among the steps."""

    def send(self, source: Tensor, target: Tensor, then: Callable[[], None]) -> None:
        """Begins to copy `source`, on the CPU, into `target`, contiguous and of its size and dtype.

        Neither may be used before `finish`, except by `then`: its work on the device comes after the copy, which is queued then.
        """
        flat = target.view(-1)
        for begin, piece in pieces_of(source, source.itemsize):
            if self._reading == self._buffers.count:  # the next buffer's content waits to be copied
                self._advance()
            self._read(piece, flat[begin : begin + len(piece)])
        self._steps.append(then)

    def finish(self) -> None:
        """Returns when all copies are done."""
        while self._steps:
            self._steps.popleft()()
        self._buffers.settle()

    def _advance(self) -> None:
        """Takes steps until one piece less is being read."""
        before = self._reading
        while self._reading == before:
            self._steps.popleft()()

    def _read(self, piece: Tensor, target: Tensor) -> None:
        buffer, elements = self._buffers.take(piece.dtype, len(piece), target.is_cuda)
        content, into = (np.frombuffer(bytes_of(tensor), np.uint8) for tensor in (piece, elements))
        reading = submit(partial(np.copyto, into, content), len(content))

        def copy() -> None:
            reading.result()
            target.copy_(elements, non_blocking=True)
            buffer.copy = event_after(target)
            self._reading -= 1

        self._reading += 1
        self._steps.append(copy)
