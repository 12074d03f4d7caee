"""Parquet, read by row groups; a row has the values that the same row has in JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gradbus.datasets.json_values import json_value
from gradbus.datasets.rows import Row
from gradbus.errors import DatasetError, first_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

MAGIC: Final = b"PAR1"
"""The first and the last bytes of a Parquet file."""
_BATCH_ROWS: Final = 256
_BUFFER_BYTES: Final = 1 << 20


def is_parquet(path: Path) -> bool:
    """Whether the file begins as a Parquet file does. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """(row, counted from 1; the row) of every row of a file.

    Raises DatasetError for a file that is cut off or corrupt, for columns that JSON cannot hold, and where pyarrow is not installed.
    """
    number = 0
    for names, columns in _batches(_opened(path)):
        for values in zip(*columns, strict=True):
            number += 1
            where = f"row {number}"
            yield number, {name: json_value(value, where, name) for name, value in zip(names, values, strict=True)}


def _opened(path: Path) -> ParquetFile:
    try:
        import pyarrow as arrow  # noqa: PLC0415 - an extra, and slow to load
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415
    except ImportError:
        raise DatasetError(
            "Parquet is read by pyarrow, which is not installed here; install gradbus[parquet], or give the rows as JSON Lines"
        ) from None
    try:
        file = ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise _unreadable(error) from None
    if repeated := {name for name in file.schema_arrow.names if file.schema_arrow.names.count(name) > 1}:
        raise DatasetError(f"the Parquet file has several columns {min(repeated)!r}; give each a name of its own")
    return file


def _batches(file: ParquetFile) -> Iterator[tuple[Sequence[str], Sequence[list[Any]]]]:
    """(names, values) of the columns, of some rows at a time."""
    import pyarrow as arrow  # noqa: PLC0415

    names = file.schema_arrow.names
    try:
        for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
            yield names, [column.to_pylist() for column in batch.columns]
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> DatasetError:
    return DatasetError(f"the Parquet file cannot be read ({first_line(error)}); it may be cut off: write or copy it again")
