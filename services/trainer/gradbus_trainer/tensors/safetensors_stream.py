"""The safetensors format, written tensor by tensor: the library's own writer needs all tensors at once.

https://github.com/huggingface/safetensors#format: the header's length in 8 bytes, the header in JSON, then the elements.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import BinaryIO

import torch

from gradbus.formats.safetensors import header
from gradbus_kernels.weights.digest import SAFETENSORS_DTYPES
from gradbus_kernels.weights.digest_tree import WeightsDigest, piece_digest
from gradbus_kernels.weights.piece_reader import PieceReader
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.output import Output, open_output


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """What a file says of its tensors."""

    dtype: torch.dtype
    """Of all of them: elements are rounded to it, to nearest, ties to even."""
    metadata: Mapping[str, str] | None = None


def write_safetensors(
    file: BinaryIO, tensors: LazyTensors, layout: TensorLayout, reader: PieceReader, digest: WeightsDigest | None = None
) -> None:
    """Writes `tensors` into an empty file, to the byte as the library does.

    Threads hash pieces for `digest` and write them while others are on their way from the device; see `PieceReader` for what is in memory.
    Raises OSError.
    """
    dtype = layout.dtype
    head = header({name: (SAFETENSORS_DTYPES[dtype], tensors.shapes[name]) for name in sorted(tensors)}, layout.metadata)
    output = open_output(file, len(head) + size_of(tensors.shapes, dtype))
    output.reserve(0, len(head))
    output.write(0, head)
    begin, under_way = len(head), deque[Future[bytes]]()
    try:
        for name in sorted(tensors):
            size = dtype.itemsize * math.prod(tensors.shapes[name])
            output.reserve(begin, size)
            pieces = reader.submit(tensors[name], dtype, _Writing(output, begin, digest is not None).work)
            begin += size
            if digest is not None:
                digest.begin(name, SAFETENSORS_DTYPES[dtype], tensors.shapes[name])
                for piece in pieces:
                    digest.add(piece)
            under_way += pieces
            while under_way and under_way[0].done():  # a full disk ends this early
                under_way.popleft().result()
        while under_way:
            under_way.popleft().result()
    finally:
        reader.finish()


def size_of(shapes: Mapping[str, torch.Size], dtype: torch.dtype) -> int:
    """Bytes of all elements."""
    return sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Writing:
    """The work on one tensor."""

    output: Output
    begin: int
    hashed: bool

    def work(self, begin: int, piece: memoryview) -> bytes:
        self.output.write(self.begin + begin, piece)
        return piece_digest(piece) if self.hashed else b""
