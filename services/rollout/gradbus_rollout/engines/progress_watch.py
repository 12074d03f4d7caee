"""Ends the calls to an engine that makes no progress.

An engine counts its progress for all calls together, so one task looks at the count for all of them: an episode makes a call for each of
its turns, and a task and a timer for each would take more of the processor than the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gradbus.aio.tasks import cancel_and_wait
from gradbus.errors import EngineHungError
from gradbus_rollout.engines.base import Engine

_LOOKS: Final = 8
"""At the engine's progress within one limit."""


class ProgressWatch:
    """Watches one engine. The task that looks begins with a call, and ends at the first look without one."""

    def __init__(self, engine: Engine, limit: float) -> None:
        self._engine = engine
        self._limit = limit
        self.is_released = False
        """Whether the device is away from the engine: calls in flight have no deadline meanwhile."""
        self._calls: dict[asyncio.Timeout, float] = {}
        """In flight, with the times of the event loop at which they began."""
        self._moved = 0.0
        """When the last progress was seen."""
        self._looking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def over(self, work: str) -> AsyncIterator[None]:
        """Watches the block, which is one call: raises EngineHungError in it once neither the call nor any progress is younger than the
        limit. A look that fails ends the calls in flight with its error."""
        try:
            async with asyncio.timeout(None) as deadline:
                self._calls[deadline] = asyncio.get_running_loop().time()
                if self._looking is None or self._looking.done():
                    self._looking = asyncio.create_task(self._look(), name="engine progress")
                    self._looking.add_done_callback(self._end_all)
                try:
                    yield
                finally:
                    del self._calls[deadline]
        except TimeoutError:
            if not deadline.expired():
                raise
            raise self._cause(work) from None

    async def close(self) -> None:
        """Looks no more. Calls in flight have no deadline from then on."""
        if self._looking is not None:
            await cancel_and_wait(self._looking)

    async def _look(self) -> None:
        last = await self._engine.progress()
        while self._calls:
            await asyncio.sleep(self._limit / _LOOKS)
            progress, now = await self._engine.progress(), asyncio.get_running_loop().time()
            if progress != last or self.is_released:
                last, self._moved = progress, now
            for deadline, began in self._calls.items():
                if now - max(began, self._moved) >= self._limit:
                    _end(deadline, now)

    def _end_all(self, looking: asyncio.Task[None]) -> None:
        """Ends the calls that nobody watches any more, because a look failed."""
        if not looking.cancelled() and looking.exception() is not None:
            for deadline in self._calls:
                _end(deadline, asyncio.get_running_loop().time())

    def _cause(self, work: str) -> BaseException:
        looking = self._looking
        if looking is not None and looking.done() and not looking.cancelled() and (error := looking.exception()) is not None:
            return error
        return EngineHungError(
            f"{self._engine.name} has {work} to do and made no progress for {self._limit:.0f} s; the worker ends: start it again, "
            "look at the device, or raise GRADBUS_ENGINE_PROGRESS_SECONDS for a slow one"
        )


def _end(deadline: asyncio.Timeout, now: float) -> None:
    if not deadline.expired():  # a call may take a while to end
        deadline.reschedule(now)
