"""Files of a folder store: put there without a copy, and made to outlive a power cut."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_DRAFT_SECONDS: Final = 3600.0


def sync_files(root: Path, paths: Iterable[str]) -> None:
    """Syncs the files at `paths` below `root`, then each folder on the way to them. Raises OSError."""
    folders: set[Path] = set()
    for path in paths:
        file = root / path
        _sync(file)
        folders.update(parent for parent in file.parents if parent.is_relative_to(root))
    for folder in sorted(folders, key=lambda item: len(item.parts), reverse=True):
        _sync(folder)


def link_file(source: Path, target: Path) -> bool:
    """Makes `target` another name of `source`, or replaces it; False where the two cannot share a file, e.g. on two disks."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}#{secrets.randbelow(1 << 32)}")  # a name that the store does not list
    try:
        os.link(source, draft)
    except OSError:
        return False
    try:
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return True


def remove_drafts(folder: Path) -> None:
    """Removes what killed processes left half written in `folder`: names that the store does not list, untouched for an hour."""
    before = time.time() - _DRAFT_SECONDS
    for draft in folder.glob("*#*"):
        with contextlib.suppress(FileNotFoundError):  # it has got its name meanwhile
            if draft.stat().st_mtime < before:
                draft.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
