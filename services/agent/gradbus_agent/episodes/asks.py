"""The requests of one episode: which of them are one, who waits for them, and in which order the policy is asked."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gradbus_agent.contract import ChatRequest, PolicyTurn, RefusalError

MAX_IN_FLIGHT: Final = 16
"""Requests of one episode that wait for an answer."""
_MAX_ANSWERED: Final = 64
"""Newest answered requests that are kept for retries."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells a retry from another request with the same body."""

    body: bytes
    """Digest of the body, and of the interface that it came by."""
    is_retry: bool = False
    key: str = ""
    """Of the header `Idempotency-Key`."""


@dataclass(eq=False, slots=True)
class Ask:
    """A request, however often it was sent."""

    request: ChatRequest
    mark: Mark
    answer: asyncio.Future[PolicyTurn]
    """Its exception is a RefusalError."""
    waiting: int = 1
    """Connections that wait for the answer."""
    is_delivered: bool = False
    """Whether the answer went out on a connection that was still open."""

    @property
    def is_lost(self) -> bool:
        """Whether its client never got the answer, and no connection waits for it."""
        return not self.waiting and not self.is_delivered


@dataclass(slots=True)
class Asks:
    """The requests of one episode."""

    queue: deque[Ask] = field(default_factory=deque)
    """Those that wait for their turn, in the order in which they came."""
    drawing: Ask | None = None
    """The one that the policy draws for."""
    answered: OrderedDict[Ask, None] = field(default_factory=OrderedDict)

    def known(self, mark: Mark) -> Ask | None:
        """The earlier request that this one repeats.

        Raises RefusalError for the idempotency key of another request.
        """
        if mark.key:
            same = next((ask for ask in self._newest_first() if ask.mark.key == mark.key), None)
            if same is not None and same.mark.body != mark.body:
                message = "this Idempotency-Key was sent with another body; a new request needs a new key"
                raise RefusalError(400, "idempotency_key_reused", message)
            if same is not None:
                return same
        equal = [ask for ask in self._newest_first() if ask.mark.body == mark.body]
        lost = next((ask for ask in equal if ask.is_lost), None)
        return lost or (equal[0] if equal and mark.is_retry else None)

    def add(self, request: ChatRequest, mark: Mark) -> Ask:
        """Queues a new request. Raises RefusalError if too many wait."""
        if len(self.queue) + (self.drawing is not None) >= MAX_IN_FLIGHT:
            message = f"{MAX_IN_FLIGHT} requests of this episode wait for an answer, as many as may; send fewer at a time"
            raise RefusalError(429, "too_many_requests", message, retry_after=1)
        ask = Ask(request, mark, asyncio.get_running_loop().create_future())
        self.queue.append(ask)
        return ask

    def take(self) -> Ask | None:
        """The next request, which the policy now draws for."""
        self.drawing = self.queue.popleft() if self.queue else None
        return self.drawing

    def leave(self, ask: Ask, *, is_delivered: bool) -> None:
        """A connection waits no more. A request that nobody waits for, and that the policy was not asked, is dropped."""
        ask.waiting -= 1
        ask.is_delivered = ask.is_delivered or is_delivered
        if not ask.waiting and ask in self.queue:
            self.queue.remove(ask)

    def settle(self, turn: PolicyTurn) -> None:
        """Answers the request that the policy drew for."""
        ask, self.drawing = self.drawing, None
        if ask is None or ask.answer.done():
            return
        ask.answer.set_result(turn)
        self.answered[ask] = None
        if len(self.answered) > _MAX_ANSWERED:
            self.answered.popitem(last=False)

    def refuse_drawing(self, error: RefusalError) -> None:
        """Refuses the request that the policy could not draw for."""
        ask, self.drawing = self.drawing, None
        if ask is not None:
            _refuse(ask, error)

    def refuse_queue(self, error: RefusalError) -> None:
        """Refuses all that wait for their turn."""
        while self.queue:
            _refuse(self.queue.popleft(), error)

    @property
    def are_none(self) -> bool:
        """Whether nothing is asked: the agent acts next."""
        return not self.queue and self.drawing is None

    def _newest_first(self) -> Iterator[Ask]:
        yield from reversed(self.queue)
        if self.drawing is not None:
            yield self.drawing
        yield from reversed(self.answered)


def _refuse(ask: Ask, error: RefusalError) -> None:
    if not ask.answer.done():
        ask.answer.set_exception(error)
        ask.answer.exception()  # a request that nobody waits for is no error to be logged
