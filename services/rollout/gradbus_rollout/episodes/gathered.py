"""Calls of many episodes, made together: while one is in flight, the next one gathers what is asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from gradbus.errors import GradbusError

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


class Gathered(Generic[_Given, _Result]):
    """One call at a time, of all that waits. When a call fails, each one in it is asked alone: it may be another one's fault."""

    def __init__(self, call: Callable[[Sequence[_Given]], Awaitable[Sequence[_Result | GradbusError]]]) -> None:
        self._call = call
        self._waiting: list[tuple[_Given, asyncio.Future[_Result]]] = []
        self._in_flight: asyncio.Task[Sequence[_Result | GradbusError]] | None = None

    async def ask(self, given: _Given) -> _Result:
        """The result of one call. Raises its GradbusError."""
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((given, future))
        self._begin()
        return await future

    def _begin(self) -> None:
        if self._in_flight is not None or not self._waiting:
            return
        taken, self._waiting = self._waiting, []
        call = self._in_flight = asyncio.create_task(self._called([given for given, _ in taken]), name="turns")
        call.add_done_callback(lambda task: self._end(task, [future for _, future in taken]))

    async def _called(self, given: Sequence[_Given]) -> Sequence[_Result | GradbusError]:
        try:
            return await self._call(given)
        except GradbusError as error:
            return [error] if len(given) == 1 else [(await self._called([one]))[0] for one in given]

    def _end(self, task: asyncio.Task[Sequence[_Result | GradbusError]], futures: Sequence[asyncio.Future[_Result]]) -> None:
        self._in_flight = None
        waiting = [(at, future) for at, future in enumerate(futures) if not future.done()]
        error = None if task.cancelled() else task.exception()
        for at, future in waiting:
            if task.cancelled():
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            elif isinstance(result := task.result()[at], GradbusError):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._begin()
