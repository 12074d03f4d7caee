"""The files of a folder that are a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gradbus.errors import DatasetError
from gradbus.spec import MAX_FILES

SUFFIXES: Final = (".jsonl", ".ndjson", ".parquet")


def data_files(path: Path) -> list[Path]:
    """The file, or the files of a folder and its folders in their order.

    Raises DatasetError for a folder without a file or with too many, and OSError for no path.
    """
    if not path.is_dir():
        path.stat()
        return [path]
    names = (file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    found = dataset_names(names, f"the folder {path.name}")
    if not found:
        raise DatasetError(f"the folder {path.name} has no dataset; put files with one of {', '.join(SUFFIXES)} into it")
    return [path / name for name in found]


def dataset_names(names: Iterable[str], where: str) -> list[str]:
    """Of the names of a folder's files, relative to it with `/` between their parts, those of a dataset, in the order of their characters.

    Local folders and those of object storage both have this order, as the digest of the rows depends on it.
    Raises DatasetError for too many, naming the folder by `where`.
    """
    found = sorted(name for name in names if name.endswith(SUFFIXES) and not _is_hidden(name))
    if len(found) > MAX_FILES:
        raise DatasetError(f"{where} has {len(found)} files, at most {MAX_FILES} are taken; join some of them")
    return found


def _is_hidden(name: str) -> bool:
    """Whether the hub's library or a file manager put it there."""
    return any(part.startswith(".") for part in name.split("/"))
