"""Room on the disk for uploads, which are written to a temporary file before they are stored."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gradbus_gateway.http.problems import ProblemError

_RESERVE_BYTES: Final = 1 << 30
"""Left to others who write to the same disk."""


def check_room(more: int) -> None:
    """Raises the problem 507 if `more` bytes would fill the disk."""
    if shutil.disk_usage(tempfile.gettempdir()).free - more < _RESERVE_BYTES:
        raise _no_room()


@contextmanager
def refused_when_full() -> Iterator[None]:
    """For a block that writes an upload: a full disk becomes the problem 507."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise _no_room() from error
        raise


def _no_room() -> ProblemError:
    return ProblemError(507, "no-room", "the gateway's disk has no room for the upload; try again later, or ask the operator to free space")
