"""How a worker waits for a buffer that is away or full: as its trouble, which the run's status shows."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from redis.exceptions import MasterDownError, OutOfMemoryError, ReadOnlyError, ResponseError, TryAgainError

from gradbus.control.runs import WorkerPresence
from gradbus.errors import SettingsError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_RETRY_SECONDS: Final = 0.5
_TROUBLE_SECONDS: Final = 10.0
"""So long it may be away before the worker says so."""
_PASSING: Final = ("MISCONF", "BUSY", "NOREPLICAS", "CLUSTERDOWN")
"""Beginnings of refusals that end by themselves, or when an operator has made room on the disk."""
_PASSING_KINDS: Final = (MasterDownError, ReadOnlyError, TryAgainError)


@dataclass(slots=True)
class BufferWait:
    """Of the calls of one kind that a worker makes for one run."""

    presence: WorkerPresence
    trouble: str = ""
    """Why it waits, as it is shown; empty if it does not."""
    since: float | None = None
    """When a call first failed, with no answer since; by the monotonic clock."""

    async def wait(self, error: Exception) -> None:
        """Waits a moment before the call is made again. Raises SettingsError if it would fail in the same way for ever."""
        reason = _reason(error)
        now = time.monotonic()
        if self.since is None:
            self.since = now
            _log.info("buffer_refused", error=reason)
        if now - self.since >= _TROUBLE_SECONDS and self.presence.trouble != reason:
            _log.warning("buffer_away", error=reason)
            self.trouble = self.presence.trouble = reason
        await asyncio.sleep(_RETRY_SECONDS)

    def came_back(self) -> None:
        """A call was answered."""
        self.since = None
        if self.trouble and self.presence.trouble == self.trouble:
            self.presence.trouble = ""
        self.trouble = ""


def _reason(error: Exception) -> str:
    """What the wait is for, and what to do about it. Raises SettingsError for a refusal that does not pass."""
    said = str(error).rpartition(" caused error: ")[2]  # after the command, with what was to be stored
    text = f"{type(error).__name__}: {said}"
    if isinstance(error, OutOfMemoryError):
        return f"the buffer is full ({text}); cancel runs that hold much of it, or give it more memory"
    if not isinstance(error, ResponseError) or isinstance(error, _PASSING_KINDS) or said.startswith(_PASSING):
        return f"the buffer is away ({text}); see its log"
    raise SettingsError(
        f"the buffer refuses a call of this worker ({text}); start the stack again, that loads this version's functions and access rules"
    ) from error
