"""Writes an exported version to disk and checks each file against its digest."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from gradbus.client.merge import check_mergeable
from gradbus.client.merge import write_merged as write_merged_weights
from gradbus.client.retries import RetryPolicy
from gradbus.errors import CorruptRecordError, StackError
from gradbus.formats.hf_model import checked_file_name
from gradbus.resources.versions import ExportFile, ExportMerge, ExportResource

_WEIGHTS = ".safetensors"
Download = Callable[[str], Iterator[bytes]]


def check_empty(folder: Path) -> None:
    """Raises StackError if `folder` exists and is not an empty folder: files of two models would be mixed."""
    try:
        if any(folder.iterdir()):
            raise StackError(f"{folder} is not empty; name a new folder, or allow it with --overwrite")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StackError(f"cannot write {folder} ({error.strerror}); choose another folder") from error


def write_files(files: Iterable[ExportFile], folder: Path, download: Download, retries: RetryPolicy) -> None:
    """Downloads `files` (name and id) into `folder`. A file gets its name only when it is complete; an interrupted download is retried.

    Raises StackError when `folder` cannot be written, CorruptRecordError when bytes do not match their digest.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            retries.run(partial(_write, folder / checked_file_name(file.name), file.id, download))
    except OSError as error:
        raise StackError(f"cannot write {folder} ({error.strerror}); choose another folder") from error


def write_merged(plan: ExportResource, merge: ExportMerge, folder: Path, download: Download, retries: RetryPolicy) -> None:
    """Downloads the base model and the adapters of `plan`, and writes the merged model into `folder`.

    Raises like `write_files`, StackError where merging is not possible, and ModelError for adapters of another model.
    """
    check_mergeable()
    weights = [file for file in plan.files if file.name.endswith(_WEIGHTS)]
    write_files([file for file in plan.files if file not in weights], folder, download, retries)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".base-") as base:
            write_files([*weights, merge.adapters], Path(base), download, retries)
            write_merged_weights([Path(base) / file.name for file in weights], Path(base) / merge.adapters.name, merge.scale, folder)
    except OSError as error:
        raise StackError(f"cannot write {folder} ({error.strerror}); choose another folder") from error


def write_export(plan: ExportResource, folder: Path, download: Download, retries: RetryPolicy) -> None:
    """Writes the model of `plan` into `folder`. Raises like `write_merged`."""
    if plan.merge is None:
        write_files(plan.files, folder, download, retries)
    else:
        write_merged(plan, plan.merge, folder, download, retries)


def _write(target: Path, digest: str, download: Download) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    found = hashlib.sha256()
    with temporary.open("wb") as file:
        for chunk in download(digest):
            found.update(chunk)
            file.write(chunk)
    if f"sha256:{found.hexdigest()}" != digest:
        temporary.unlink()
        raise CorruptRecordError(f"{target.name} does not match its digest {digest}; export again")
    temporary.replace(target)
