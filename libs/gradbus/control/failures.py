"""Counts the failed attempts at a run: a run that fails in the same way again and again ends, and infrastructure that is away ends none."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from grpc.aio import AioRpcError
from nats.errors import Error as NatsError
from redis.exceptions import RedisError

from gradbus.errors import (
    CorruptRecordError,
    DiskError,
    FencedError,
    ObjectMissingError,
    RestartNeededError,
    StorageError,
    VersionGoneError,
    first_line,
)

MOST_FAILURES: Final = 3
"""Attempts that may fail in the same way before the run ends."""
_KINDS: Final = 3
"""Failures that all look different count this much less."""
_INFRASTRUCTURE: Final = (
    *(NatsError, RedisError, AioRpcError, OSError),  # OSError: disks, sockets and time limits
    *(StorageError, ObjectMissingError, CorruptRecordError, DiskError, FencedError, RestartNeededError, VersionGoneError),
)
_MOST_CHARACTERS: Final = 4000
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\d+")


def is_infrastructure(error: BaseException) -> bool:
    """Whether the error comes from a server, a disk or another process, so that it says nothing about the run."""
    return isinstance(error, _INFRASTRUCTURE)


def described(error: BaseException) -> str:
    """The error's type and first line, fit for a status; of an error without a text, such as MemoryError, what its type means."""
    return storable(f"{type(error).__name__}: {first_line(error) or type(error).__doc__}")


def storable(text: str) -> str:
    """`text` as it can be stored in a bucket: errors may quote any amount of a user's files, in characters that are not Unicode."""
    return text[:_MOST_CHARACTERS].encode(errors="replace").decode()


class RunFailures:
    """Failed attempts at one run since it last progressed."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.cause = ""
        """The newest failure that counts."""
        self._kinds: Counter[str] = Counter()
        self._reached = -1

    @property
    def count(self) -> int:
        """Attempts that failed in the same way."""
        return max(*self._kinds.values(), self._kinds.total() // _KINDS, 0)

    @property
    def ends_run(self) -> bool:
        """Whether another attempt would fail too."""
        return self.count >= MOST_FAILURES

    def add(self, error: BaseException) -> None:
        """Counts a failed attempt, unless infrastructure failed."""
        if not is_infrastructure(error):
            self.add_cause(described(error))

    def add_cause(self, cause: str) -> None:
        """Counts an attempt that failed in another process, where it was described."""
        self.cause = cause
        self._kinds[_VARYING.sub("", cause)] += 1

    def progressed(self, reached: int) -> None:
        """Forgets the failures if no attempt came so far before: a run that only repeats its way to the same failure does not progress."""
        if reached > self._reached:
            self._reached = reached
            self._kinds.clear()
            self.cause = ""
