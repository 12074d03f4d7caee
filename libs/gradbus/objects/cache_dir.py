"""Writes below GRADBUS_CACHE_DIR. Errors do not name the folder, because the status of a run shows them to its user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradbus.errors import DiskError, first_line


def unwritable_cache(what: str, error: OSError) -> DiskError:
    """The error for `what` that cannot be written below the cache folder."""
    reason = error.strerror or first_line(error)
    return DiskError(
        f"cannot write {what} into the cache folder ({reason}); see that it is writable and has room, or set GRADBUS_CACHE_DIR to a "
        "folder on a larger disk"
    )


@contextmanager
def written_below_cache(what: str) -> Iterator[None]:
    """For a block that writes `what` below the cache folder: an OSError becomes a DiskError, but a FileNotFoundError stays one."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unwritable_cache(what, error) from error
