"""Reads tensors of any device into host memory: pieces are on their way while threads work on those that have arrived."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from threading import Semaphore
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradbus_kernels.weights.host_buffers import HostBuffers, bytes_of, event_after, on_host, pieces_of
from gradbus_kernels.weights.threads import submit, weight_threads

_Result = TypeVar("_Result")
Work = Callable[[int, memoryview], _Result]
"""Called with a piece's first byte in its tensor, and the piece, which is valid until it returns."""


class PieceReader:
    """Has threads work on the pieces of tensors (`host_buffers.pieces_of`). Belongs to one thread; keeps its buffers.

    Pieces of a GPU, and those that must be cast, go through the buffers. Others are not copied; at most as many as there are buffers are
    under way, of one tensor if it has several.
    """

    def __init__(self) -> None:
        self._buffers = HostBuffers()
        self._in_place = Semaphore(self._buffers.count)
        self._under_way: list[Future[Any]] = []

    def submit(self, tensor: Tensor, dtype: torch.dtype, work: Work[_Result]) -> list[Future[_Result]]:
        """Has `work` done on each piece of the tensor in `dtype`, which may be changed after `finish`. Waits while too much is under way.

        A future raises what the work raised. Raises RuntimeError where a piece cannot be copied; `finish` is due then too.
        """
        in_place = on_host(tensor) and tensor.dtype == dtype
        start = self._uncopied if in_place else self._copied
        futures: list[Future[_Result]] = []
        for begin, piece in pieces_of(tensor, dtype.itemsize):
            futures.append(start(piece, dtype, partial(work, begin * dtype.itemsize)))
            self._under_way.append(futures[-1])  # at once: `finish` waits for it even if the next piece fails
        if in_place and len(futures) > 1:
            wait(futures)  # or two large tensors would be in memory
        return futures

    def finish(self) -> None:
        """Waits for all work; nothing reads the tensors and buffers afterwards."""
        wait(self._under_way)
        self._under_way = []

    def _uncopied(self, piece: Tensor, _: torch.dtype, work: Callable[[memoryview], _Result]) -> Future[_Result]:
        content = bytes_of(piece)
        self._in_place.acquire()
        future = submit(partial(work, content), len(content))
        future.add_done_callback(lambda _: self._in_place.release())
        return future

    def _copied(self, piece: Tensor, dtype: torch.dtype, work: Callable[[memoryview], _Result]) -> Future[_Result]:
        buffer = self._buffers.take(piece.is_cuda)
        elements = buffer[: piece.numel() * dtype.itemsize].view(dtype)
        try:
            elements.copy_(piece.to(dtype) if piece.is_cuda else piece, non_blocking=True)
            arrived = event_after(piece)
        except BaseException:
            self._buffers.give_back(buffer)
            raise
        content = bytes_of(elements)  # here: in a thread without inference mode torch refuses tensors of that mode

        def work_on() -> _Result:
            if arrived is not None:
                arrived.synchronize()
            return work(content)

        # On a GPU whatever its size: it may wait for the pieces before it.
        future = submit(work_on, len(content)) if arrived is None else weight_threads().submit(work_on)
        future.add_done_callback(lambda _: self._buffers.give_back(buffer))
        return future
