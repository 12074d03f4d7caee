"""Which callers live. Each holds a call open, and when its process dies the kernel ends the connection, and the call with it.

A caller that is slow, or stands still for less than the server's ping waits (80 s), is not taken for dead: its connection stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Final

HELD_SECONDS: Final = 60.0
"""After so long a held call is answered, and made again."""
_PAUSED_SECONDS: Final = 60.0
"""So long a caller may take to make it again: it may stand still."""


@dataclass(slots=True)
class _Caller:
    calls: int = 0
    """That it holds."""
    gone_at: float = 0.0
    """Without a call, it is gone from then on; by the monotonic clock."""
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Its call, or the next one, is answered at once."""


class LiveCallers:
    """The callers that live, and those that are gone."""

    def __init__(self, lost_seconds: float) -> None:
        """`lost_seconds`: how long a caller may take to come back when its connection ended."""
        self._lost_seconds = lost_seconds
        self._callers: dict[str, _Caller] = {}
        self._is_over = False

    async def hold(self, name: str) -> None:
        """The call of one that lives: returns after HELD_SECONDS, when it is answered, or at the end; is cancelled with its connection."""
        caller = self._callers.setdefault(name, _Caller())
        caller.calls += 1
        patience = self._lost_seconds
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.0 if self._is_over else HELD_SECONDS):
                    await caller.wanted.wait()
            caller.wanted.clear()
            patience = _PAUSED_SECONDS
        finally:
            caller.calls -= 1
            caller.gone_at = time.monotonic() + patience

    def answer(self, name: str) -> None:
        """Answers the call of one that lives, or else its next call, at once."""
        if name in self._callers:
            self._callers[name].wanted.set()

    def note(self, name: str) -> None:
        """One that just made another call: it lives, whether or not it holds one, and may be gone before it does."""
        if name:
            caller = self._callers.setdefault(name, _Caller())
            caller.gone_at = max(caller.gone_at, time.monotonic() + _PAUSED_SECONDS)

    def take_gone(self) -> frozenset[str]:
        """The callers that are gone since the last time."""
        now = time.monotonic()
        gone = frozenset(name for name, caller in self._callers.items() if not caller.calls and caller.gone_at <= now)
        for name in gone:
            del self._callers[name]
        return gone

    def end(self) -> None:
        """Answers all calls that are held, as the server stops."""
        self._is_over = True
        for caller in self._callers.values():
            caller.wanted.set()
