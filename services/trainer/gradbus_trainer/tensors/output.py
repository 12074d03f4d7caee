"""A new file of a known size that several threads fill."""

from __future__ import annotations

import errno
import mmap
import os
from threading import Lock
from typing import BinaryIO, Final, Protocol

import numpy as np

from gradbus_kernels.weights.threads import thread_count

_MAPPED_FROM: Final = 4
"""Threads from which a mapping is faster, by that number; to fill its pages takes twice the CPU time of a write."""


class Output(Protocol):
    """A file, of which any thread may write parts."""

    def reserve(self, begin: int, size: int) -> None:
        """Gets room for these bytes, before they are written. Raises OSError where there is none."""
        ...

    def write(self, begin: int, content: bytes | memoryview) -> None:
        """Writes all of the content. Raises OSError."""
        ...


def open_output(file: BinaryIO, size: int) -> Output:
    """The empty file for `size` bytes, not 0: mapped, if there are threads enough to fill its pages at once and room can be reserved.

    Raises OSError, for a full disk too.
    """
    return _Mapped(file, size) if thread_count() >= _MAPPED_FROM and _reserves(file) else _Written(file)


def _reserves(file: BinaryIO) -> bool:
    """Whether its file system, asked for the first byte, reserves room; some of FUSE's refuse, and macOS cannot ask."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(file.fileno(), 0, 1)
    except OSError as error:
        if error.errno in {errno.EOPNOTSUPP, errno.EINVAL}:
            return False
        raise
    return True


class _Written:
    """One thread at a time writes, as the system would have it; so the others do not spin for their turn."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file.fileno()
        self._lock = Lock()

    def reserve(self, begin: int, size: int) -> None:
        """Writes find room by themselves."""

    def write(self, begin: int, content: bytes | memoryview) -> None:
        with self._lock:
            while content:
                count = os.pwrite(self._file, content, begin)
                begin, content = begin + count, content[count:]


class _Mapped:
    """All threads copy into the file's mapping, which ends with the last reference to this object.

    A page without room on the disk would end the process, so none is touched that is not reserved.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file.fileno()
        os.truncate(self._file, size)
        self._bytes = np.frombuffer(mmap.mmap(self._file, size), np.uint8)

    def reserve(self, begin: int, size: int) -> None:
        if size:
            os.posix_fallocate(self._file, begin, size)

    def write(self, begin: int, content: bytes | memoryview) -> None:
        self._bytes[begin : begin + len(content)] = np.frombuffer(content, np.uint8)
