"""The children of one run's environment: which of them a session is in, and who leaves when a call takes long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from gradbus.sandbox.budget import ProcessBudget
from gradbus.sandbox.process import ProcessStoppedError
from gradbus_environment.sandbox.process import EnvironmentProcess
from gradbus_environment.telemetry import count_children
from gradbus_environment.worlds.turnstile import Turnstile

_log = structlog.get_logger(__name__)

SLOW_SECONDS = 1.0
"""A call that takes longer keeps its child for itself if others wait for it."""
ALONE_PER_SHARED = 4
"""So many times the shared children of a run may be alone with a slow session; beyond it others wait."""


@dataclass(eq=False, slots=True)
class Child:
    """A process with its sessions."""

    process: EnvironmentProcess
    turns: Turnstile = field(default_factory=Turnstile)
    residents: set[str] = field(default_factory=set)
    """Sessions whose state it holds."""
    closed: list[str] = field(default_factory=list)
    """Sessions that it may forget with the next call."""
    alone_with: str = ""
    caller: str = ""
    """The session of the present call."""
    began: float = 0.0
    """When the present call began."""

    def serves(self, session: str) -> bool:
        """Whether the session may be in it."""
        return self.is_alive and self.alone_with in {"", session}

    @property
    def is_alive(self) -> bool:
        """False once it is killed, or found dead."""
        return self.process.alive and not self.process.has_ended


class Children:
    """Up to `limit` children that share the sessions, and some that are alone with a slow one."""

    def __init__(self, start: Callable[[], Awaitable[EnvironmentProcess]], limit: int, budget: ProcessBudget) -> None:
        self._start_process = start
        self._limit = limit
        self._budget = budget
        self._children: list[Child] = []
        self._homes: dict[str, Child] = {}
        """By session."""
        self._starting = asyncio.Lock()
        self._stopping: set[asyncio.Task[None]] = set()
        budget.add(self)

    async def enter(self, session: str) -> Child:
        """The child of the session, for the caller alone until `leave`. Raises UserCodeError if none can be started."""
        while True:
            child = self._homes.get(session)
            if child is None or not child.serves(session):
                child = self._homes[session] = await self._place()
            if child.turns.is_taken and time.monotonic() - child.began > SLOW_SECONDS:
                self._leave_alone(child)
            if child.serves(session) and await child.turns.enter():
                if child.serves(session):
                    child.caller, child.began = session, time.monotonic()
                    asyncio.get_running_loop().call_later(SLOW_SECONDS, self._look, child, child.began)
                    return child
                child.turns.leave()

    def leave(self, child: Child) -> None:
        """Ends the use of a child. One that is not alive is stopped."""
        if not child.turns.has_waiting:
            child.process.pause()
        child.turns.leave()
        if not child.process.alive:
            self._drop(child)

    def forget(self, session: str) -> None:
        """The session is closed."""
        child = self._homes.pop(session, None)
        if child is not None and session in child.residents:
            child.residents.discard(session)
            child.closed.append(session)
        if child is not None and child.alone_with == session:
            child.process.kill()
            self._drop(child)

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[Child]:
        """A new child for the caller alone, which ends with the block."""
        child = await self._started()
        try:
            yield child
        finally:
            child.process.kill()
            await self._stop(child)

    async def any_process(self) -> EnvironmentProcess:
        """A process that has loaded the source."""
        child = next((one for one in self._children if one.is_alive), None)
        return (child or await self._place()).process

    async def shed(self) -> bool:
        """Stops a child that computes nothing, whose sessions begin anew in another; False if there is none."""
        child = next((one for one in self._children if not one.turns.is_taken), None)
        if child is None:
            return False
        child.process.kill()
        self._drop(child)
        await self._stopped()
        return True

    async def end(self) -> None:
        """Stops all children."""
        self._budget.remove(self)
        for child in list(self._children):
            child.process.kill()
            self._drop(child)
        await self._stopped()

    async def _place(self) -> Child:
        """The child with the fewest sessions, or a new one."""
        async with self._starting:
            for child in [one for one in self._children if not one.is_alive and not one.turns.is_taken]:
                child.process.kill()
                self._drop(child)
            shared = [one for one in self._children if one.is_alive and not one.alone_with]
            least = min(shared, key=self._population, default=None)
            is_enough = len(shared) >= self._limit or not self._budget.has_room
            if least is not None and (is_enough or self._population(least) == 0):
                return least
            child = await self._started()
            self._children.append(child)
            return child

    async def _started(self) -> Child:
        """A new child, for which there is room."""
        await self._budget.acquire(self)
        try:
            process = await self._start_process()
        except BaseException:
            self._budget.release()
            raise
        count_children(1)
        return Child(process)

    def _population(self, child: Child) -> int:
        return sum(1 for home in self._homes.values() if home is child)

    def _look(self, child: Child, began: float) -> None:
        if child.turns.is_taken and child.began == began and child.process.alive and not child.alone_with:
            if child.turns.has_waiting:
                self._leave_alone(child)
            asyncio.get_running_loop().call_later(SLOW_SECONDS, self._look, child, began)

    def _leave_alone(self, child: Child) -> None:
        """The others' sessions begin anew in another child, unless too many are alone already."""
        alone = sum(1 for one in self._children if one.alone_with)
        if child.alone_with or alone >= self._limit * ALONE_PER_SHARED:
            return
        child.alone_with = child.caller
        child.residents.intersection_update({child.caller})
        child.turns.turn_away()

    def _drop(self, child: Child) -> None:
        """Takes a child that was killed out of use, and stops it in the background."""
        if child not in self._children:
            return
        self._children.remove(child)
        child.turns.turn_away()
        task = asyncio.create_task(self._stop(child), name="stop environment")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _stop(self, child: Child) -> None:
        try:
            await child.process.stop()
        except ProcessStoppedError as error:
            _log.error("environment_process_remains", error=str(error))
        finally:
            count_children(-1)
            self._budget.release()

    async def _stopped(self) -> None:
        if self._stopping:
            await asyncio.wait(self._stopping)
