"""Writer and reader of the bytes of a delta: numbers, byte strings and bit planes. The reader checks every length."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

MAX_NUMBER_BYTES: Final = 9


class DeltaError(ValueError):
    """A delta cannot be encoded or applied."""


class DamagedDeltaError(DeltaError):
    """The bytes are not the output of an encoder."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"the weights delta is damaged ({fault}); fetch it again, or fetch the whole version")


class Writer:
    """Collects the parts of a delta."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def number(self, value: int) -> None:
        """Appends a non-negative integer, seven bits a byte, lowest first (LEB128)."""
        digits = bytearray()
        while value > 0x7F:
            digits.append(value & 0x7F | 0x80)
            value >>= 7
        digits.append(value)
        self._parts.append(bytes(digits))

    def raw(self, part: bytes) -> None:
        """Appends bytes whose length the reader knows."""
        self._parts.append(part)

    def bits(self, flags: NDArray[np.bool_]) -> None:
        """Appends one plane: a bit for each flag, the lowest bit of a byte first."""
        self._parts.append(np.packbits(flags, bitorder="little").tobytes())

    def append(self, other: Writer) -> None:
        """Appends all parts of another."""
        self._parts += other._parts

    def done(self) -> bytes:
        """All parts joined."""
        return b"".join(self._parts)


class Reader:
    """Reads the output of `Writer`. Every method raises DamagedDeltaError instead of reading past the end."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._content = memoryview(content)
        self._offset = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._content) - self._offset

    def raw(self, size: int) -> memoryview:
        """The next `size` bytes, not copied."""
        if size > self.left:
            raise DamagedDeltaError(f"{size} bytes are announced where {self.left} are left")
        self._offset += size
        return self._content[self._offset - size : self._offset]

    def accept(self, expected: bytes) -> bool:
        """Whether these bytes come next; if so, skips them."""
        found = self._content[self._offset : self._offset + len(expected)] == expected
        self._offset += len(expected) if found else 0
        return found

    def number(self, most: int) -> int:
        """A number no larger than `most`."""
        value = 0
        for index in range(MAX_NUMBER_BYTES):
            if self._offset == len(self._content):
                raise DamagedDeltaError("a number has no end")
            digit = self._content[self._offset]
            self._offset += 1
            value |= (digit & 0x7F) << 7 * index
            if digit < 0x80:
                break
        else:
            raise DamagedDeltaError("a number has no end")
        if value > most:
            raise DamagedDeltaError(f"{value} stands where {most} is the most there can be")
        return value

    def bits(self, count: int) -> NDArray[np.uint8]:
        """One plane: `count` zeros and ones, a byte each."""
        packed = np.frombuffer(self.raw((count + 7) // 8), np.uint8)
        return np.unpackbits(packed, count=count, bitorder="little")
