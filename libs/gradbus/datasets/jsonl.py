"""JSON Lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import BinaryIO, Final

from gradbus.datasets.rows import Row, kind_of
from gradbus.errors import DatasetError
from gradbus.strict_json import parse_json

MAX_ROW_BYTES: Final = 1 << 20
MAX_LINES: Final = 50_000_000
_BEGINNINGS: Final[Mapping[bytes, str]] = {
    b"\x1f\x8b": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"PK\x03\x04": "a ZIP archive",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
"""Of files that are mistaken for JSON Lines."""


def numbered(file: BinaryIO) -> Iterator[tuple[int, Row]]:
    """(line, row) of every row of a file; lines count from 1, blank lines included.

    Raises DatasetError, naming the line, if the file is not JSON Lines or past a limit. At no time is more than a line in memory.
    """
    for number, line in numbered_lines(file):
        yield number, parsed_row(line, f"line {number}")


def numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The same before they are parsed. Raises DatasetError for too many lines, and for a file that begins as none of text does."""
    for number, line in enumerate(iter(partial(file.readline, MAX_ROW_BYTES + 2), b""), start=1):
        if number == 1 and (found := next((name for begin, name in _BEGINNINGS.items() if line.startswith(begin)), None)):
            raise DatasetError(f"the file is {found}; write one JSON object a line, in UTF-8, or Parquet")
        if number > MAX_LINES:
            raise DatasetError(f"the dataset has more than {MAX_LINES} lines; leave rows or blank lines out")
        if line.strip():
            yield number, line


def parsed_row(line: bytes, where: str) -> Row:
    """The row in a line. Raises DatasetError, naming it by `where`."""
    if len(line.rstrip(b"\r\n")) > MAX_ROW_BYTES:
        raise DatasetError(f"{where} has more than {MAX_ROW_BYTES} bytes; shorten or split the row")
    try:
        row = parse_json(line.rstrip())
    except ValueError as error:
        # The message without the parser's own line number, which is always 1.
        cause = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise DatasetError(f"{where} is not JSON ({cause}); write one JSON object a line") from None
    if not isinstance(row, dict):
        raise DatasetError(f"{where} is {kind_of(row)}; write one JSON object a line, with a column for the prompt")
    return row


def as_line(row: Row) -> bytes:
    """A row as a line: as Python's `json` writes it by default, but in UTF-8. Raises ValueError for what JSON cannot hold."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
