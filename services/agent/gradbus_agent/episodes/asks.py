"""The requests of one episode: which of them are one, who waits for them, and in which order the policy is asked."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gradbus_agent.contract import ChatRequest, PolicyTurn, RefusalError
from gradbus_agent.episodes.memory import MAX_RUN_BYTES, ByteBudget
from gradbus_agent.matching import Question

MAX_IN_FLIGHT: Final = 16
"""Requests of one episode that wait for an answer."""
MAX_JOINED: Final = 16
"""Connections that wait for the answer to one request."""
_MAX_ANSWERED: Final = 64
"""Newest answered requests that are kept for retries."""
_MAX_REFUSED: Final = 256
"""Bodies whose refused requests are counted."""
_NOTHING: Final = Question.of(ChatRequest(()))


@dataclass(frozen=True, slots=True)
class Mark:
    """What tells a retry from another request with the same body."""

    body: bytes
    """Digest of the body, and of the interface that it came by."""
    is_retry: bool = False
    key: str = ""
    """Of the header `Idempotency-Key`."""
    size: int = 0
    """Of the body, in bytes."""


@dataclass(eq=False, slots=True)
class Ask:
    """A request, however often it was sent."""

    question: Question
    """Of no messages once it is answered: a replay needs the answer alone."""
    mark: Mark
    answer: asyncio.Future[PolicyTurn]
    """Its exception is a RefusalError."""
    began: int = field(default_factory=time.time_ns)
    """When it came first, in nanoseconds since 1970."""
    waiting: int = 1
    """Connections that wait for the answer."""
    left: int = 0
    """Connections that waited for it, and have ended."""
    is_delivered: bool = False
    """Whether the answer went out on a connection that was still open."""

    @property
    def is_lost(self) -> bool:
        """Whether its client never got the answer, and no connection waits for it."""
        return not self.waiting and not self.is_delivered


@dataclass(slots=True)
class Asks:
    """The requests of one episode."""

    budget: ByteBudget = field(default_factory=ByteBudget)
    """Of all requests of the run that are not answered."""
    queue: deque[Ask] = field(default_factory=deque)
    """Those that wait for their turn, in the order in which they came."""
    drawing: Ask | None = None
    """The one that the policy draws for."""
    answered: OrderedDict[Ask, None] = field(default_factory=OrderedDict)
    refused: Counter[bytes] = field(default_factory=Counter)
    """How many requests with a body were refused for now, and have not come again."""
    given: list[tuple[bytes, PolicyTurn]] = field(default_factory=list)
    """Every answer, with the key of its question."""
    repeats: dict[bytes, deque[PolicyTurn]] = field(default_factory=dict)
    """Those that an agent which began again has not got again, by question."""

    @property
    def waiting_untrained(self) -> int:
        """Untrained requests that are not answered."""
        return sum(ask.question.request.is_untrained for ask in (*self.queue, *([self.drawing] if self.drawing else ())))

    def earlier(self, question: Question, mark: Mark) -> Ask | None:
        """The earlier request that this one repeats; None: it is one of its own. Raises RefusalError as `known` does."""
        if mark.key or mark.is_retry:
            return self.known(mark) or self._again(question, mark)
        return self._again(question, mark) or self.known(mark)

    def forget_answers(self) -> None:
        """Nobody asks for them any more."""
        self.answered.clear()
        self.repeats.clear()
        self.given.clear()

    def rewind(self) -> int:
        """The agent begins again: the k-th request with a question gets the k-th answer that it had. How many answers there are."""
        self.answered.clear()
        self.repeats = {}
        for key, turn in self.given:
            self.repeats.setdefault(key, deque()).append(turn)
        return len(self.given)

    def known(self, mark: Mark) -> Ask | None:
        """The earlier request that this one repeats; None: it is one of its own.

        An idempotency key says it exactly. Without one it is an equal one that was lost. A marked retry may also be that of an equal
        request which was refused, and which is then drawn for the first time. Else it can be that of the only equal one, but of several
        it could be anyone's: two requests must not get one answer. Raises RefusalError for the idempotency key of another request.
        """
        if mark.key:
            return self._of_key(mark)
        equal = [ask for ask in self._newest_first() if ask.mark.body == mark.body and not ask.mark.key]
        lost = next((ask for ask in equal if ask.is_lost), None)
        if lost is not None or not mark.is_retry:
            return lost
        if self.refused[mark.body]:
            self.refused[mark.body] -= 1
            return None
        return equal[0] if len(equal) == 1 else None

    def join(self, ask: Ask) -> None:
        """One more connection waits for the answer. Raises RefusalError if too many do."""
        if ask.waiting >= MAX_JOINED:
            message = f"{MAX_JOINED} connections wait for the answer to this request, as many as may; close those of earlier tries"
            raise RefusalError(429, "too_many_requests", message, retry_after=1)
        ask.waiting += 1

    def add(self, question: Question, mark: Mark) -> Ask:
        """Queues a new request. Raises RefusalError if too many wait, or all that wait in the run are too large."""
        if len(self.queue) + (self.drawing is not None) >= MAX_IN_FLIGHT:
            self.note_refused(mark)
            message = f"{MAX_IN_FLIGHT} requests of this episode wait for an answer, as many as may; send fewer at a time"
            raise RefusalError(429, "too_many_requests", message, retry_after=1)
        if not self.budget.take(mark.size):
            self.note_refused(mark)
            message = f"the requests of this run that wait take {MAX_RUN_BYTES >> 20} MiB, as many as they may; send fewer at a time"
            raise RefusalError(429, "too_many_bytes", message, retry_after=5)
        ask = Ask(question, mark, asyncio.get_running_loop().create_future())
        self.queue.append(ask)
        return ask

    def note_refused(self, mark: Mark) -> None:
        """A request is refused for now: a retry may come that is no other request's."""
        self.refused = +self.refused  # without those whose retry has come
        if len(self.refused) < _MAX_REFUSED:
            self.refused[mark.body] += 1

    def take(self) -> Ask | None:
        """The next request, which the policy now draws for."""
        self.drawing = self.queue.popleft() if self.queue else None
        return self.drawing

    def leave(self, ask: Ask, *, is_delivered: bool) -> None:
        """A connection waits no more. A request that nobody waits for, and that the policy was not asked, is dropped."""
        ask.waiting, ask.left = ask.waiting - 1, ask.left + 1
        ask.is_delivered = ask.is_delivered or is_delivered
        if not ask.waiting and ask in self.queue:
            self.queue.remove(ask)
            self.budget.give_back(ask.mark.size)

    def settle(self, turn: PolicyTurn) -> None:
        """Answers the request that the policy drew for."""
        ask, self.drawing = self.drawing, None
        if ask is None:
            return
        self.budget.give_back(ask.mark.size)
        if ask.answer.done():
            return
        self.given.append((ask.question.key, turn))
        self._keep(ask, turn)

    def is_abandoned(self, ask: Ask) -> bool:
        """Whether the policy draws for the request, and nobody waits for it."""
        return ask is self.drawing and not ask.waiting

    def withdraw(self) -> None:
        """The policy draws for its request no more. It is the next one again if somebody waits for it now, and else forgotten."""
        ask, self.drawing = self.drawing, None
        if ask is not None and ask.waiting:
            self.queue.appendleft(ask)
        elif ask is not None:
            self.budget.give_back(ask.mark.size)

    def refuse_drawing(self, error: RefusalError) -> None:
        """Refuses the request that the policy could not draw for."""
        ask, self.drawing = self.drawing, None
        if ask is not None:
            self._refuse(ask, error)

    def refuse_queue(self, error: RefusalError) -> None:
        """Refuses all that wait for their turn."""
        while self.queue:
            self._refuse(self.queue.popleft(), error)

    def _again(self, question: Question, mark: Mark) -> Ask | None:
        """A request whose answer an agent had before it began again."""
        if not self.repeats or not (turns := self.repeats.get(question.key)):
            return None
        ask = Ask(question, mark, asyncio.get_running_loop().create_future(), waiting=0)
        self._keep(ask, turns.popleft())
        return ask

    def _keep(self, ask: Ask, turn: PolicyTurn) -> None:
        ask.answer.set_result(turn)
        ask.question = _NOTHING
        self.answered[ask] = None
        if len(self.answered) > _MAX_ANSWERED:
            self.answered.popitem(last=False)

    def _of_key(self, mark: Mark) -> Ask | None:
        same = next((ask for ask in self._newest_first() if ask.mark.key == mark.key), None)
        if same is not None and same.mark.body != mark.body:
            message = "this Idempotency-Key was sent with another body; a new request needs a new key"
            raise RefusalError(400, "idempotency_key_reused", message)
        return same

    def _newest_first(self) -> Iterator[Ask]:
        yield from reversed(self.queue)
        if self.drawing is not None:
            yield self.drawing
        yield from reversed(self.answered)

    def _refuse(self, ask: Ask, error: RefusalError) -> None:
        self.budget.give_back(ask.mark.size)
        if not ask.answer.done():
            ask.answer.set_exception(error)
            ask.answer.exception()  # a request that nobody waits for is no error to be logged
