"""Turns of many episodes to the tokenizer's process and back: while one call is in flight, the next one gathers what is asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from gradbus.errors import GradbusError
from gradbus.tokenizer.tokenizer import Tokenizer
from gradbus.tokenizer.turns import ChatConversation, ChatMessage, DrawnTurn, Extension, ParsedTurn, TurnAnswer

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


class TurnCodec:
    """Text and calls of turns, and the tokens between them. Every method raises as `Tokenizer`'s do."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._parse = _Gathered(tokenizer.parse)
        self._extend = _Gathered(tokenizer.extend)

    async def conversation(self, given: ChatConversation) -> tuple[int, ...]:
        """Prompt ids `[P]` of a conversation that an environment begins, or in which an agent asks."""
        (ids,) = await self._tokenizer.conversations([given])
        return ids

    async def parse(self, drawn: DrawnTurn) -> ParsedTurn:
        """Text and calls of a turn."""
        return await self._parse.ask(drawn)

    async def extend(self, drawn: tuple[int, ...], messages: Sequence[ChatMessage]) -> Extension:
        """The ids that follow a turn."""
        return await self._extend.ask(TurnAnswer(drawn, messages))


class _Gathered(Generic[_Given, _Result]):
    """One call at a time, of all that waits. When a call fails, each one in it is asked alone: it may be another one's fault."""

    def __init__(self, call: Callable[[Sequence[_Given]], Awaitable[Sequence[_Result]]]) -> None:
        self._call = call
        self._waiting: list[tuple[_Given, asyncio.Future[_Result]]] = []
        self._in_flight: asyncio.Task[Sequence[_Result | GradbusError]] | None = None

    async def ask(self, given: _Given) -> _Result:
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
