"""A file with one row a line, of which single lines are read, whatever its size."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import Final

_ROWS_BETWEEN: Final = 64
_BYTES_BETWEEN: Final = 1 << 18
"""Between two lines whose places are in memory there are at most so many lines, or so many bytes and a line."""


class RowFile:
    """The lines of a file, by number from 0. It may be read by several threads, and be removed meanwhile.

    In memory are 16 bytes for each 64 lines. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")  # closed with this object
        self._rows, self._starts = array("Q"), array("Q")
        row = position = 0
        for row, line in enumerate(self._file, start=1):
            if not self._rows or row - 1 - self._rows[-1] >= _ROWS_BETWEEN or position - self._starts[-1] >= _BYTES_BETWEEN:
                self._rows.append(row - 1)
                self._starts.append(position)
            position += len(line)
        self._count, self._end = row, position

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self._end

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> bytes:
        """The line of a row, without its end."""
        if not 0 <= row < self._count:
            raise IndexError(row)
        at = bisect_right(self._rows, row) - 1
        end = self._starts[at + 1] if at + 1 < len(self._starts) else self._end
        lines = os.pread(self._file.fileno(), end - self._starts[at], self._starts[at]).split(b"\n")
        return lines[row - self._rows[at]]
