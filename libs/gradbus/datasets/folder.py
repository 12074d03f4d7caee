"""The files of a folder that are a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gradbus.errors import DatasetError
from gradbus.spec import MAX_FILES

SUFFIXES: Final = (".jsonl", ".ndjson", ".parquet")


def data_files(path: Path) -> list[Path]:
    """The file, or the files of a folder and its folders in the order of their names.

    Raises DatasetError for a folder without a file or with too many, and OSError for no path.
    """
    if not path.is_dir():
        path.stat()
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file() and not _is_hidden(file, path))
    if not found:
        raise DatasetError(f"the folder {path.name} has no dataset; put files with one of {', '.join(SUFFIXES)} into it")
    if len(found) > MAX_FILES:
        raise DatasetError(f"the folder {path.name} has {len(found)} files, at most {MAX_FILES} are taken; join some of them")
    return found


def _is_hidden(file: Path, folder: Path) -> bool:
    """Whether the hub's library or a file manager put it there."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)
