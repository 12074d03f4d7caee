"""Writes below GRADBUS_CACHE_DIR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradbus.errors import DiskError, first_line


@contextmanager
def written_below(folder: Path, what: str) -> Iterator[None]:
    """For a block that writes `what` below `folder`: an OSError becomes a DiskError, but a FileNotFoundError stays one."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DiskError(
            f"cannot write {what} into {folder} ({error.strerror or first_line(error)}); see that it is writable and has room, or set "
            "GRADBUS_CACHE_DIR to a folder on a larger disk"
        ) from error
