"""What a folder needs so that its files outlive a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def sync_files(root: Path, paths: Iterable[str]) -> None:
    """Syncs the files at `paths` below `root`, then each folder on the way to them. Raises OSError."""
    folders: set[Path] = set()
    for path in paths:
        file = root / path
        _sync(file)
        folders.update(parent for parent in file.parents if parent.is_relative_to(root))
    for folder in sorted(folders, key=lambda item: len(item.parts), reverse=True):
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
