"""Paths in object storage. A name from a user is checked before it becomes one."""

from __future__ import annotations

import re

from gradbus.errors import SettingsError
from gradbus.ids import is_digest

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def blob_path(digest: str) -> str:
    """Path of the blob `sha256:<hex>`. Raises SettingsError when `digest` is not a digest."""
    if not is_digest(digest):
        raise SettingsError(f"{digest!r} is not a digest; give `sha256:` and 64 hexadecimal digits")
    return f"blobs/{digest.removeprefix('sha256:')}"


def is_safe_part(part: str) -> bool:
    """Whether `part` may be a part of a path: no separator, and not hidden."""
    return _PART.fullmatch(part) is not None


def checked_path(path: str) -> str:
    """`path`, if each of its parts is safe. Raises SettingsError otherwise."""
    if not all(is_safe_part(part) for part in path.split("/")):
        raise SettingsError(f"{path!r} is not a path in object storage; use parts of letters, digits, '.', '_' and '-', joined by '/'")
    return path
