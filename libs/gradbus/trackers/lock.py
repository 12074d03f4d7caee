"""Of several `gradbus track` of one run into one place, the first alone writes: each would add the points that the others add."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import IO

from gradbus.errors import TrackerError


def lock_for(place: str, run_id: str) -> IO[bytes]:
    """A file of this user, locked until it is closed, for a place that has no file of its own for the run. Raises TrackerError, OSError."""
    folder = Path(tempfile.gettempdir()) / f"gradbus-track-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    name = hashlib.sha256(f"{place}\n{run_id}".encode()).hexdigest()
    file = (folder / name).open("ab")
    lock(file, run_id)
    return file


def lock(file: IO[bytes], run_id: str) -> None:
    """Locks a file until it is closed or this process ends. Raises TrackerError if another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TrackerError(f"another `gradbus track` writes run {run_id} there already; stop it, or wait for its end") from None
    except OSError:  # the file system has no locks
        return
