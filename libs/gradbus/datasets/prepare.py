"""From the files of a user to the one file of a dataset: rows with their columns renamed, checked and filtered, a line each.

The bytes are a function of the rows, so their digest, and with it the order of training, does not depend on the format of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from gradbus.datasets.jsonl import MAX_ROW_BYTES, as_line, numbered_lines, parsed_row
from gradbus.datasets.parquet import is_parquet, parquet_rows
from gradbus.datasets.rows import GivenRow, Row, check_columns, given_row, listed
from gradbus.errors import DatasetError
from gradbus.nearest import nearest_name
from gradbus.spec import RowColumns, RowFilter

_NO_ROWS: Final = "the dataset has no rows; write one JSON object a line, or give a Parquet file with rows"


class DatasetInfo(BaseModel):
    """Facts about a dataset, after one pass."""

    model_config = ConfigDict(frozen=True)

    rows: int = 0
    columns: frozenset[str] = frozenset()
    """Columns that every row has."""
    chat: bool = False
    """Whether any prompt is a list of messages, which needs a chat template."""
    longest: int = 0
    """Bytes of the longest row."""
    left_out: int = 0
    """Rows that the filter leaves out."""


class RowPlan(BaseModel):
    """What happens to each row."""

    model_config = ConfigDict(frozen=True)

    columns: RowColumns
    """What the run reads of it."""
    names: Mapping[str, str] = {}
    """Names that columns get, to those that they have in the files."""
    filter: RowFilter = RowFilter()


class DatasetFile(NamedTuple):
    """A file of a dataset."""

    name: str
    """As messages name it; empty if it is the only one."""
    path: Path


class ReadRow(NamedTuple):
    """A row as it is stored."""

    where: str
    row: Row
    """With its columns renamed."""
    read: GivenRow
    """What the run reads of it."""
    line: bytes
    """Empty for a row that the filter leaves out."""


@dataclass(slots=True)
class _Found:
    """Facts about the rows so far."""

    rows: int = 0
    columns: frozenset[str] = frozenset()
    chat: bool = False
    longest: int = 0
    left_out: int = 0
    written: int = 0

    def add(self, row: Row, read: GivenRow, size: int) -> None:
        if not self.rows or not self.columns <= row.keys():
            self.columns = self.columns.intersection(row) if self.rows else frozenset(row)
        self.rows += 1
        self.written += size + 1
        self.chat = self.chat or not isinstance(read.prompt, str)
        self.longest = max(self.longest, size)


def write_rows(files: Sequence[DatasetFile], plan: RowPlan, out: BinaryIO, most_bytes: int) -> DatasetInfo:
    """Writes the rows of all files. Raises DatasetError for the first wrong row, for more than `most_bytes`, and for no rows; OSError."""
    found = _Found()
    for row in read_rows(files, plan):
        if isinstance(row, DatasetError):
            raise row
        if not row.line:
            found.left_out += 1
            continue
        found.add(row.row, row.read, len(row.line) - 1)
        if found.written > most_bytes:
            raise DatasetError(f"the rows have more than {most_bytes} bytes as JSON; give fewer, or the operator raises the limit")
        out.write(row.line)
    if not found.rows:
        raise DatasetError(no_rows(found.left_out))
    return DatasetInfo(rows=found.rows, columns=found.columns, chat=found.chat, longest=found.longest, left_out=found.left_out)


def no_rows(left_out: int) -> str:
    """Why a dataset is refused of which nothing is left, though no row is wrong."""
    return f"the filter leaves out all {left_out} rows; widen data.filter" if left_out else _NO_ROWS


def read_rows(files: Iterable[DatasetFile], plan: RowPlan) -> Iterator[ReadRow | DatasetError]:
    """Each row of all files, or why it is refused. Raises DatasetError for a file that cannot be read further, and OSError."""
    for where, given in _rows_of(files):
        found: ReadRow | DatasetError
        try:
            found = given if isinstance(given, DatasetError) else _read_row(given, plan, where)
        except DatasetError as error:
            found = error
        yield found


def _rows_of(files: Iterable[DatasetFile]) -> Iterator[tuple[str, Row | DatasetError]]:
    """(where, row, or what is wrong with its line) of all files, in their order. Raises DatasetError, OSError."""
    for name, path in files:
        of = f" of {name}" if name else ""
        try:
            if is_parquet(path):
                for number, row in parquet_rows(path):
                    yield f"row {number}{of}", row
                continue
            with path.open("rb") as file:
                for number, line in numbered_lines(file):
                    yield (where := f"line {number}{of}"), _parsed(line, where)
        except DatasetError as error:
            raise DatasetError(f"{name}: {error}" if name and name not in str(error) else str(error)) from None


def _parsed(line: bytes, where: str) -> Row | DatasetError:
    """Raises DatasetError for a line that is too long: its rest would be taken for another one."""
    try:
        return parsed_row(line, where)
    except DatasetError as error:
        if len(line) > MAX_ROW_BYTES:
            raise
        return error


def _read_row(row: Row, plan: RowPlan, where: str) -> ReadRow:
    """Raises DatasetError, naming the row by `where`."""
    check_columns(row, where)
    if plan.names:
        row = _renamed(row, plan.names, where)
    read = given_row(row, plan.columns, where)
    if not _passes(row, read, plan):
        return ReadRow(where, row, read, b"")
    line = as_line(row)
    if len(line) > MAX_ROW_BYTES + 1:
        raise DatasetError(f"{where} has more than {MAX_ROW_BYTES} bytes as JSON; shorten or split the row")
    return ReadRow(where, row, read, line)


def _passes(row: Row, read: GivenRow, plan: RowPlan) -> bool:
    """Whether the filter keeps a row. One without a number in a column with a range is left out."""
    kept = plan.filter
    prompt, responses = _characters(read.prompt), [_characters(response) for response in read.responses]
    if not kept.min_prompt_characters <= prompt <= (kept.max_prompt_characters or prompt):
        return False
    if kept.max_response_characters is not None and max(responses, default=0) > kept.max_response_characters:
        return False
    return all(_is_within(row.get(name), *bounds) for name, bounds in kept.ranges.items())


def _is_within(value: object, lowest: float, highest: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and lowest <= value <= highest


def _characters(value: object) -> int:
    """Characters of a text, or of all messages."""
    if isinstance(value, str):
        return len(value)
    return sum(len(str(message.get("content", ""))) for message in value) if isinstance(value, list) else 0


def _renamed(row: Row, names: Mapping[str, str], where: str) -> Row:
    """The row's columns with the names that they get, in their order."""
    for name, old in names.items():
        if old not in row:
            nearest = nearest_name(old, row)
            advice = f"did you mean {nearest!r}?" if nearest else f"correct data.columns.{name}"
            raise DatasetError(f"{where} has no column {old!r}, it has {listed(row)}; {advice}")
        if name in row and name not in names.values():
            raise DatasetError(f"{where} has a column {name!r} already; give it another name in data.columns too")
    new = {old: name for name, old in names.items()}
    return {new.get(name, name): value for name, value in row.items()}
