"""A table of numbers that grows at its end and is read downsampled."""

from __future__ import annotations

import asyncio
import errno
import math
import os
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from gradbus.objects.cache_dir import unwritable_cache
from gradbus_gateway.history.buckets import Buckets, Curve, spans_of
from gradbus_gateway.history.size import Size

PIECE: Final = 4096
"""The x of a piece have the same quotient by it."""
GRAIN: Final = 64
"""Width of the buckets that stay in memory."""
NEWEST: Final = 50
"""So many rows at the end are never merged: speeds and shares of time are computed of them."""
MOST_COLUMNS: Final = 512
"""Of a table, those that come first: a scorer may name its components differently at every step."""
_MOST_NUMBERS: Final = 1 << 18
"""Buckets times columns of a selection: every point of a bucket is four numbers of an answer."""
_ITEM_BYTES: Final = 8
_COLUMN_BYTES: Final = 200
"""Of an open column without its numbers."""


@dataclass(slots=True)
class _Rows:
    """Rows in memory; NaN where a column has no value."""

    x: array[int] = field(default_factory=lambda: array("q"))
    at: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, array[float]] = field(default_factory=dict)

    def add(self, x: int, at: float, values: Mapping[str, float]) -> None:
        for name in values.keys() - self.columns.keys():
            self.columns[name] = array("d", [math.nan]) * len(self.x)
        self.x.append(x)
        self.at.append(at)
        for name, column in self.columns.items():
            column.append(values.get(name, math.nan))

    @property
    def memory_bytes(self) -> int:
        """An estimate."""
        return (len(self.columns) + 2) * (len(self.x) * _ITEM_BYTES + _COLUMN_BYTES)

    def as_now(self) -> _Rows:
        """The same rows and columns; it gets further rows, but no columns that come later."""
        return _Rows(self.x, self.at, dict(self.columns))

    def buckets(self, start: int, end: int, names: Collection[str] | None) -> Buckets:
        """Copies of the rows from index `start` to before `end`, with the columns in `names`, or all."""
        chosen = self.columns if names is None else {name: self.columns[name] for name in names if name in self.columns}
        x, at, ones = self.x[start:end], self.at[start:end], array("q", [1]) * (end - start)
        return Buckets(x, x[:], ones, at, at[:], {name: Curve.of_rows(column[start:end]) for name, column in chosen.items()})


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows in the file: their x, their times, then the columns in the order of `names`, 8 bytes a number."""

    file: IO[bytes]
    offset: int
    names: tuple[str, ...]
    buckets: Buckets
    """The rows merged, `GRAIN` wide."""

    @property
    def first(self) -> int:
        return self.buckets.first[0]

    @property
    def last(self) -> int:
        return self.buckets.last[-1]

    def read(self, names: Collection[str] | None) -> _Rows:
        """The rows with the columns in `names`, or all."""
        size = sum(self.buckets.rows) * _ITEM_BYTES

        def part(number: int) -> bytes:
            return os.pread(self.file.fileno(), size, self.offset + number * size)

        chosen = [(number, name) for number, name in enumerate(self.names, 2) if names is None or name in names]
        return _Rows(array("q", part(0)), array("d", part(1)), {name: array("d", part(number)) for number, name in chosen})


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of a table as it was when it was selected."""

    start: int
    """The first x, not below that of the table."""
    end: int
    """The last x, not beyond that of the table."""
    points: int
    """Most buckets, beside `NEWEST` at the end and one at the beginning."""
    names: frozenset[str] | None
    """The columns; None: all."""
    head: int
    tail: int
    """From here on rows are not merged."""
    pieces: tuple[_Piece, ...]
    rest: _Rows
    """Rows that are not in the file, of which those from the first index to before the second are selected."""
    span: tuple[int, int]

    @property
    def width(self) -> int:
        """Of a bucket: a power of two, so that buckets begin at the same x whatever part is selected and however much the table grows."""
        return 1 << (math.ceil(max(1, self.end - self.start + 1) / self.points) - 1).bit_length()

    def downsampled(self) -> Buckets:
        """The buckets. Reads the file: run it in a thread."""
        found = Buckets()
        for part in (*map(self._of_piece, self.pieces), self.rest.buckets(*self.span, self.names)):
            found.extend(part.merged(spans_of(part.first, self.width, self.head, self.tail)))
        return found.merged(spans_of(found.first, self.width, self.head, self.tail)) if self.width > PIECE else found

    def _of_piece(self, piece: _Piece) -> Buckets:
        is_inside = max(self.start, self.head + 1) <= piece.first and piece.last <= min(self.end, self.tail - 1)
        if is_inside and self.width >= GRAIN:
            found = piece.buckets.part(0, len(piece.buckets))
            found.curves = {name: curve for name, curve in found.curves.items() if self.names is None or name in self.names}
            return found
        rows = piece.read(self.names)
        return rows.buckets(bisect_left(rows.x, self.start), bisect_right(rows.x, self.end), self.names)


class Table:
    """Rows by ascending x. The older ones are in a file without a name, which ends with the table; in memory stay buckets of `GRAIN`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where the file lies; both are made for the first piece."""
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._pieces: list[_Piece] = []
        self._open = _Rows()
        self._names: set[str] = set()
        self._newest: deque[int] = deque(maxlen=NEWEST)
        self._first: int | None = None
        self._file_bytes = 0
        self._piece_bytes = 0
        self.has_left_out = False
        """Whether there were more than `MOST_COLUMNS` columns."""

    @property
    def size(self) -> Size:
        """What it takes."""
        return Size(
            files=int(self._file is not None), disk_bytes=self._file_bytes, memory_bytes=self._open.memory_bytes + self._piece_bytes
        )

    async def add(self, x: int, at: float, values: Mapping[str, float]) -> bool:
        """Adds a row, unless there is one with this x or a larger one. Returns whether it did. One call at a time.

        Raises DiskError when the folder cannot be written; the row is not added then.
        """
        if self._newest and x <= self._newest[-1]:
            return False
        if self._open.x and x // PIECE != self._open.x[-1] // PIECE:
            await self._store()
        self._first = x if self._first is None else self._first
        self._newest.append(x)
        self._open.add(x, at, self._within(values))
        return True

    def select(self, start: int | None, end: int | None, points: int, names: frozenset[str] | None) -> Selection:
        """The rows with `start <= x <= end`; None is the end of the table. More than 131 columns have fewer than 2,000 points."""
        first, last = (self._first, self._newest[-1]) if self._first is not None else (0, 0)
        low, high = first if start is None else max(first, start), last if end is None else min(last, end)
        x = self._open.x
        pieces = tuple(piece for piece in self._pieces if piece.first <= high and low <= piece.last)
        tail = self._newest[0] if self._newest else 0
        span = bisect_left(x, low), bisect_right(x, high)
        columns = len(self._names if names is None else self._names & names)
        points = min(points, _MOST_NUMBERS // max(1, columns))
        return Selection(low, high, points, names, first, tail, pieces, self._open.as_now(), span)

    def _within(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """The values whose columns are, or now become, among the first `MOST_COLUMNS`."""
        if values.keys() <= self._names:
            return values
        new = [name for name in values if name not in self._names]
        self._names.update(islice(new, MOST_COLUMNS - len(self._names)))
        known = {name: value for name, value in values.items() if name in self._names}
        self.has_left_out |= len(known) < len(values)
        return known

    async def _store(self) -> None:
        piece = await asyncio.to_thread(self._written)
        self._pieces.append(piece)
        self._file_bytes += sum(piece.buckets.rows) * (len(piece.names) + 2) * _ITEM_BYTES
        self._piece_bytes += piece.buckets.memory_bytes
        self._open = _Rows()

    def _written(self) -> _Piece:
        """The open rows as a piece in the file. Takes tenths of a second: run it in a thread."""
        rows = self._open
        data = b"".join([rows.x.tobytes(), rows.at.tobytes(), *(column.tobytes() for column in rows.columns.values())])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = self._file or TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - it ends with the table
            if os.pwrite(self._file.fileno(), data, self._file_bytes) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise unwritable_cache("the history of a run", error) from error
        whole = rows.buckets(0, len(rows.x), None)
        merged = whole.merged(spans_of(whole.first, GRAIN, -1, 1 << 62))
        return _Piece(self._file, self._file_bytes, tuple(rows.columns), merged)
