"""Paths of this machine that a spec may name: those under the operator's roots, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def under_roots(given: str, roots: Sequence[Path]) -> Path | None:
    """The path with its links resolved, if it exists under a root; a relative one is looked for in each root."""
    for root in roots:
        base = root.resolve()
        try:
            path = (base / given).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            continue
        if path.is_relative_to(base):
            return path
    return None


def advice(roots: Sequence[Path]) -> str:
    """What may be written instead."""
    where = f"a path under {', '.join(map(str, roots))}" if roots else "no path of the server, for it has no roots (GRADBUS_MODEL_ROOTS)"
    return f"{where}; `gradbus run` uploads what lies on your machine and sends its digest"
