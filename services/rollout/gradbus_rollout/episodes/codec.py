"""Turns of many episodes to the tokenizer's process and back: while one call is in flight, the next one gathers what is asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Literal, TypeVar

from gradbus.tokenizer.tokenizer import Tokenizer
from gradbus.tokenizer.turns import ChatMessage, Extension, ParsedTurn, TurnAnswer

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")
_Drawn = tuple[tuple[int, ...], Literal["stop", "length"]]


class TurnCodec:
    """Text and calls of turns, and the tokens between them. Every method raises as `Tokenizer`'s do."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        async def parsed(turns: Sequence[_Drawn]) -> list[ParsedTurn]:
            return await tokenizer.parse([ids for ids, _ in turns], [finish for _, finish in turns])

        self._tokenizer = tokenizer
        self._parse = _Gathered(parsed)
        self._extend = _Gathered(tokenizer.extend)

    async def conversation(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Prompt ids `[P]` of a conversation that an environment begins."""
        (ids,) = await self._tokenizer.conversations([messages])
        return ids

    async def parse(self, drawn: tuple[int, ...], finish: Literal["stop", "length"]) -> ParsedTurn:
        """Text and calls of a turn."""
        return await self._parse.ask((drawn, finish))

    async def extend(self, drawn: tuple[int, ...], messages: Sequence[ChatMessage]) -> Extension:
        """The ids that follow a turn."""
        return await self._extend.ask(TurnAnswer(drawn, messages))


class _Gathered(Generic[_Given, _Result]):
    """One call at a time, of all that waits. The error of a call is that of everyone in it."""

    def __init__(self, call: Callable[[Sequence[_Given]], Awaitable[Sequence[_Result]]]) -> None:
        self._call = call
        self._waiting: list[tuple[_Given, asyncio.Future[_Result]]] = []
        self._in_flight: asyncio.Task[Sequence[_Result]] | None = None

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

    async def _called(self, given: Sequence[_Given]) -> Sequence[_Result]:
        return await self._call(given)

    def _end(self, task: asyncio.Task[Sequence[_Result]], futures: Sequence[asyncio.Future[_Result]]) -> None:
        self._in_flight = None
        waiting = [(at, future) for at, future in enumerate(futures) if not future.done()]
        error = None if task.cancelled() else task.exception()
        for at, future in waiting:
            if task.cancelled():
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result()[at])
        self._begin()
