"""Draws of agents that nobody waits for any more.

The agent service may say so while the worker still does something before the draw, or before it knows the session, and it may say it
again. So a draw has an ordinal in its session, and what is said of a session is kept until the episode is closed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

MOST_SESSIONS: Final = 16_384
"""As many as a run has episodes in the agent service. What is said of a session after its close stays until others take its place."""
_Drawn = TypeVar("_Drawn")


class Draw(NamedTuple):
    """A turn that an agent asked for."""

    session: str
    ordinal: int
    """Steps of the session before it."""


@dataclass(slots=True)
class Withdrawals:
    """What is withdrawn, and what is being drawn."""

    most_sessions: int = MOST_SESSIONS
    newest: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """The largest ordinal of each session that was withdrawn; the session that was named last is at the end."""
    drawing: dict[Draw, asyncio.Future[None]] = field(default_factory=dict)
    """Done once nobody waits for the draw."""

    def add(self, draw: Draw) -> None:
        """Nobody waits for this draw. It ends now, or as soon as it begins; no other draw of the session does."""
        self.newest[draw.session] = max(draw.ordinal, self.newest.pop(draw.session, draw.ordinal))
        if len(self.newest) > self.most_sessions:
            self.newest.popitem(last=False)
        if (drawing := self.drawing.get(draw)) is not None and not drawing.done():
            drawing.set_result(None)

    def forget(self, session: str) -> None:
        """The session has no draw any more."""
        self.newest.pop(session, None)

    async def unless_withdrawn(self, draw: Draw, start: Callable[[], Coroutine[Any, Any, _Drawn]]) -> _Drawn | None:
        """What is drawn; None if it is withdrawn before, and then not begun, or meanwhile, and then cancelled."""
        if self.newest.get(draw.session) == draw.ordinal:
            return None
        withdrawn = self.drawing[draw] = asyncio.get_running_loop().create_future()
        drawing = asyncio.create_task(start(), name="draw")
        try:
            await asyncio.wait({drawing, withdrawn}, return_when=asyncio.FIRST_COMPLETED)
            return drawing.result() if drawing.done() else None
        finally:
            drawing.cancel()
            del self.drawing[draw]
