"""Files of a store that is a folder: hard links instead of copies, and syncs against power cuts."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PARTIAL_SECONDS: Final = 3600.0


def sync_files(root: Path, paths: Iterable[str]) -> None:
    """Syncs the files at `paths` below `root`, then each folder on the way to them. Raises OSError."""
    folders: set[Path] = set()
    for path in paths:
        file = root / path
        _sync(file)
        folders.update(parent for parent in file.parents if parent.is_relative_to(root))
    for folder in sorted(folders, key=lambda item: len(item.parts), reverse=True):
        _sync(folder)


def write_file(target: Path, data: bytes | memoryview) -> None:
    """Writes or replaces `target` at once, as a whole. Raises OSError."""
    partial = _partial(target)
    try:
        partial.write_bytes(data)
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def link_file(source: Path, target: Path) -> bool:
    """Makes `target` a hard link to `source`. Returns False where that is impossible, e.g. across two disks."""
    partial = _partial(target)
    try:
        os.link(source, partial)
    except OSError:
        return False
    try:
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return True


def remove_partial_files(folder: Path) -> None:
    """Removes the partial files of killed processes: files in `folder` that the store does not list, untouched for an hour."""
    before = time.time() - _PARTIAL_SECONDS
    for partial in folder.glob("*#*"):
        with contextlib.suppress(FileNotFoundError):  # it was renamed to its target meanwhile
            if partial.stat().st_mtime < before:
                partial.unlink()


def _partial(target: Path) -> Path:
    """A name in the folder of `target`, which is made, that the store does not list."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f"{target.name}#{secrets.randbelow(1 << 32)}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
