"""The checksum of a set of weights, which the trainer publishes and workers attest. No torch here.

A tree of SHA-256 of fixed depth, so that many threads compute it:

- a piece: over PIECE_BYTES of a tensor's elements in row-major order; the last piece has the rest. A tensor without elements has none.
- a tensor: over its name (UTF-8) and its dtype as safetensors spells it, each after its length in bytes; its number of dimensions and
  its shape; then the digests of its pieces, in order. Numbers are little-endian int64.
- the weights: over the digests of the tensors, in order of name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from gradbus_kernels.weights.threads import submit

PIECE_BYTES: Final = 1 << 23
"""Part of the definition. A core hashes them in some milliseconds; buffers of this size are cheap to keep."""


class WeightsDigest:
    """Computes the checksum tensor by tensor, in order of name."""

    def __init__(self) -> None:
        self._headers: list[bytes] = []
        self._pieces: list[list[Future[bytes]]] = []

    def begin(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Begins the next tensor; its pieces follow."""
        texts = (_number(len(text)) + text for text in (name.encode(), dtype.encode()))
        self._headers.append(b"".join((*texts, *map(_number, (len(shape), *shape)))))
        self._pieces.append([])

    def add(self, piece: Future[bytes]) -> None:
        """Adds the tensor's next piece by its `piece_digest`, which may still be computed."""
        self._pieces[-1].append(piece)

    def add_content(self, content: memoryview) -> None:
        """Adds the whole tensor, whose bytes must stay as they are until the text is computed."""
        for begin in range(0, len(content), PIECE_BYTES):
            piece = content[begin : begin + PIECE_BYTES]
            self.add(submit(partial(piece_digest, piece), len(piece)))

    def text(self) -> str:
        """`sha256:<hex>`. Waits for the pieces, and raises what their computation raised."""
        total = hashlib.sha256()
        for header, pieces in zip(self._headers, self._pieces, strict=True):
            total.update(hashlib.sha256(header + b"".join(piece.result() for piece in pieces)).digest())
        return f"sha256:{total.hexdigest()}"


def piece_digest(piece: memoryview) -> bytes:
    """SHA-256 of a piece. Other threads compute meanwhile."""
    return hashlib.sha256(piece).digest()


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")
