"""Writes an exported model to disk, each file checked against its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gradbus.client.patience import Patience
from gradbus.errors import CorruptRecordError, StackError
from gradbus.model_folder import checked_file_name

Download = Callable[[str], Iterator[bytes]]


def write_export(files: Iterable[Mapping[str, Any]], folder: Path, download: Download, patience: Patience) -> None:
    """Downloads `files` (name and id) into `folder`. A file appears under its name only when it is whole; one that is cut off comes again.

    Raises StackError when `folder` cannot be written, CorruptRecordError when bytes do not match their digest.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            patience.ask(partial(_write, folder / checked_file_name(file["name"]), file["id"], download))
    except OSError as error:
        raise StackError(f"cannot write {folder} ({error.strerror}); choose another folder") from error


def _write(target: Path, digest: str, download: Download) -> None:
    draft = target.with_name(f".{target.name}.draft")
    found = hashlib.sha256()
    with draft.open("wb") as file:
        for chunk in download(digest):
            found.update(chunk)
            file.write(chunk)
    if f"sha256:{found.hexdigest()}" != digest:
        draft.unlink()
        raise CorruptRecordError(f"{target.name} came with other bytes than {digest}; export again")
    draft.replace(target)
