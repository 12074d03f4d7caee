"""Paths on the server that a spec may name: only paths under the operator's roots (GRADBUS_MODEL_ROOTS)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def under_roots(given: str, roots: Sequence[Path]) -> Path | None:
    """`given` with its symbolic links resolved, if it exists under a root; a relative path is searched in each root."""
    for root in roots:
        base = root.resolve()
        try:
            path = (base / given).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            continue
        if path.is_relative_to(base):
            return path
    return None


def link_fault(file: Path) -> str:
    """What is said of a file below the roots that `under_roots` does not find."""
    return f"{file.name} is a symbolic link out of the server's roots; put the file itself there"


def allowed_paths(roots: Sequence[Path]) -> str:
    """The part of a fault that says which paths are allowed, without those of the server."""
    where = "a path below a root of the server" if roots else "no path of the server, which has no roots (GRADBUS_MODEL_ROOTS)"
    return f"{where}; `gradbus run` uploads files of your machine and sends their digests"
