"""A request for a turn of the policy, from its body to its answer."""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gradbus_agent.contract import Document, PolicyTurn, RefusalError
from gradbus_agent.dialects.base import Dialect, Wish
from gradbus_agent.episodes.asks import Ask, Mark
from gradbus_agent.episodes.episode import AgentEpisode
from gradbus_agent.episodes.registry import Registry
from gradbus_agent.http.bodies import MAX_VALUES, read_body, read_object, watched
from gradbus_agent.http.keys import episode_of
from gradbus_agent.matching import Question
from gradbus_agent.telemetry import count_refusal

UNTRAINED: Final = ":untrained"
"""The end of the name of a model whose turns are not trained; no run's id has a colon."""
_TRAIN: Final = "x-gradbus-train"
_KEEP_ALIVE_SECONDS: Final = 10.0
_THREADS: Final = ThreadPoolExecutor(4, thread_name_prefix="bodies")
"""Long conversations are read here, for the loop serves every run. An episode has one of them at a time."""
_SSE: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


@dataclass(frozen=True, slots=True)
class Answering:
    """An ASGI application: the route of one dialect."""

    registry: Registry
    dialect: Dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with the policy's turn, or a refusal."""
        request = Request(scope, receive)
        try:
            episode = episode_of(request, self.registry)
            body = await read_body(request)
            async with episode.reading:
                reading = asyncio.get_running_loop().run_in_executor(_THREADS, self._read, request, body)
                wish, question, mark = await reading
            if request.scope["state"]["is_crowded"]:
                episode.note_refused(mark)
                raise _crowded()
            ask = episode.submit(question, mark)
        except RefusalError as error:
            count_refusal(error.status)
            await error_response(error, self.dialect)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        await _Exchange(episode, ask, wish, self.dialect).run(scope, receive, send)

    def _read(self, request: Request, body: bytes) -> tuple[Wish, Question, Mark]:
        """Raises RefusalError."""
        document = read_object(body, MAX_VALUES)
        wish = self.dialect.read(document)
        if _is_untrained(request, document):
            wish = replace(wish, request=replace(wish.request, is_untrained=True))
        return wish, Question.of(wish.request), _mark(request, body, wish.request.is_untrained)


@dataclass(slots=True)
class _Exchange:
    """One connection that waits for a turn."""

    episode: AgentEpisode
    ask: Ask
    wish: Wish
    dialect: Dialect
    has_begun: bool = False
    """Whether the head of a stream was sent."""

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with watched(receive) as gone:
            is_delivered = False
            try:
                await self._wait(gone, send)
                if not gone.done():
                    await self._answer(scope, receive, send)
                    is_delivered = not gone.done()  # nothing ran since the last bytes were written
            finally:
                self.episode.leave(self.ask, is_delivered=is_delivered)

    async def _wait(self, gone: asyncio.Task[None], send: Send) -> None:
        waited: set[asyncio.Future[Any]] = {self.ask.answer, gone}
        while not any(future.done() for future in waited):
            await asyncio.wait(waited, timeout=_KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self.wish.is_stream and not any(future.done() for future in waited):
                await self._piece(send, b": keep-alive\n\n")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            turn = self.ask.answer.result()
        except RefusalError as error:
            count_refusal(error.status)
            if self.has_begun:
                await self._piece(send, b"".join(self.dialect.error_events(error)))
                await send({"type": "http.response.body", "body": b""})
            else:
                await error_response(error, self.dialect)(scope, receive, send)
            return
        await self._give(turn, scope, receive, send)

    async def _give(self, turn: PolicyTurn, scope: Scope, receive: Receive, send: Send) -> None:
        if self.wish.is_stream:
            await self._piece(send, b"".join(self.dialect.events(turn, self.wish)))
            await send({"type": "http.response.body", "body": b""})
        else:
            await JSONResponse(self.dialect.whole(turn, self.wish))(scope, receive, send)

    async def _piece(self, send: Send, piece: bytes) -> None:
        if not self.has_begun:
            self.has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": _SSE})
        await send({"type": "http.response.body", "body": piece, "more_body": True})


def error_response(error: RefusalError, dialect: Dialect) -> Response:
    """A refusal as a response."""
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return JSONResponse(dialect.error(error), error.status, headers)


def _crowded() -> RefusalError:
    return RefusalError(503, "too_many_connections", "the agent service has too many connections; try again in a moment", retry_after=1)


def _is_untrained(request: Request, body: Document) -> bool:
    """By a header, or by the model's name, for agents that may set no header. Raises RefusalError for another value of the header."""
    said, model = request.headers.get(_TRAIN, "true").lower(), body.get("model")
    if said not in ("true", "false"):
        raise RefusalError(400, "invalid_request", f"the header {_TRAIN} is neither true nor false; send one of them")
    return said == "false" or (isinstance(model, str) and model.endswith(UNTRAINED))


def _mark(request: Request, body: bytes, is_untrained: bool) -> Mark:
    """SDKs count the retries of a request in a header; 0 is none."""
    is_retry = request.headers.get("x-stainless-retry-count", "0") != "0"
    digest = hashlib.sha256(b"%s\n%d\n%s" % (request.url.path.encode(), is_untrained, body)).digest()
    return Mark(digest, is_retry, request.headers.get("idempotency-key", ""), len(body))
