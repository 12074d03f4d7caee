"""JSON Lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO, Final

from gradbus.datasets.rows import Row, kind_of
from gradbus.errors import DatasetError
from gradbus.strict_json import parse_json

MAX_ROW_BYTES: Final = 1 << 20
MAX_LINES: Final = 50_000_000


def numbered(file: BinaryIO) -> Iterator[tuple[int, Row]]:
    """(line, row) of every row of a file; lines count from 1, blank lines included.

    Raises DatasetError, naming the line, if the file is not JSON Lines or past a limit. At no time is more than a line in memory.
    """
    for number, line in enumerate(iter(partial(file.readline, MAX_ROW_BYTES + 2), b""), start=1):
        if number > MAX_LINES:
            raise DatasetError(f"the dataset has more than {MAX_LINES} lines; leave rows or blank lines out")
        if line.strip():
            yield number, parsed_row(line, f"line {number}")


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
