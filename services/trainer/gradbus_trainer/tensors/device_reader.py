"""Reads tensors of a GPU into host memory: the next piece is on its way while the last one is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

Piece = tuple[str, torch.Tensor]
"""Some elements of a named tensor, `[n]`."""


@dataclass(frozen=True, slots=True)
class _Arriving:
    name: str
    elements: torch.Tensor
    event: torch.cuda.Event | None

    def piece(self) -> Piece:
        """Waits for the copy."""
        if self.event is not None:
            self.event.synchronize()
        return self.name, self.elements


class DeviceReader:
    """Casts pieces where they are, and copies them through two buffers of pinned memory: a copy into other memory is many times slower.

    Pieces that are on the CPU are only cast.
    """

    def __init__(self, dtype: torch.dtype, elements: int) -> None:
        """`elements`: the most that a piece has."""
        self._dtype = dtype
        self._elements = elements
        self._buffers: list[torch.Tensor] = []
        self._copies = 0

    def on_host(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces in `dtype` on the CPU, in order. Each is valid until the next is asked for."""
        arriving: _Arriving | None = None
        for name, piece in pieces:
            begun = None if _is_on_host(piece) else self._begin(name, piece)
            if arriving is not None:
                yield arriving.piece()
            if begun is None:
                yield name, piece.to(self._dtype)
            arriving = begun
            del piece
        if arriving is not None:
            yield arriving.piece()

    def _begin(self, name: str, piece: torch.Tensor) -> _Arriving:
        """Begins to copy into the buffer that the piece before is not in."""
        if not self._buffers:
            self._buffers = [torch.empty(self._elements, dtype=self._dtype, pin_memory=piece.is_cuda) for _ in range(2)]
        target = self._buffers[self._copies % 2][: piece.numel()]
        self._copies += 1
        target.copy_(piece.to(self._dtype), non_blocking=True)
        event = torch.cuda.Event() if piece.is_cuda else None  # type: ignore[no-untyped-call]
        if event is not None:
            event.record()
        return _Arriving(name, target, event)


def _is_on_host(piece: torch.Tensor) -> bool:
    return piece.device.type == "cpu"
