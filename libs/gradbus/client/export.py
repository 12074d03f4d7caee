"""Writes an exported version to disk, each file checked against its digest."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gradbus.client.merge import check_mergeable, write_merged
from gradbus.client.retries import RetryPolicy
from gradbus.errors import CorruptRecordError, StackError
from gradbus.formats.hf_model import checked_file_name

_WEIGHTS = ".safetensors"
Download = Callable[[str], Iterator[bytes]]


def write_export(files: Iterable[Mapping[str, Any]], folder: Path, download: Download, patience: RetryPolicy) -> None:
    """Downloads `files` (name and id) into `folder`. A file appears under its name only when it is whole; one that is cut off comes again.

    Raises StackError when `folder` cannot be written, CorruptRecordError when bytes do not match their digest.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            patience.ask(partial(_write, folder / checked_file_name(file["name"]), file["id"], download))
    except OSError as error:
        raise StackError(f"cannot write {folder} ({error.strerror}); choose another folder") from error


def write_merged_export(plan: Mapping[str, Any], folder: Path, download: Download, patience: RetryPolicy) -> None:
    """Downloads a base model and the adapters that `plan` wants merged into it, and writes the sum into `folder`.

    Raises as `write_export`; also StackError where merging is not possible, ModelError for adapters of another model.
    """
    check_mergeable()
    weights = [file for file in plan["files"] if file["name"].endswith(_WEIGHTS)]
    write_export([file for file in plan["files"] if file not in weights], folder, download, patience)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".base-") as base:
            write_export([*weights, plan["merge"]["adapters"]], Path(base), download, patience)
            adapters = Path(base) / plan["merge"]["adapters"]["name"]
            write_merged([Path(base) / file["name"] for file in weights], adapters, plan["merge"]["scale"], folder)
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
