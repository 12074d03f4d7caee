"""What a provider's interface gives and takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gradbus_agent.contract import ChatRequest, Document, PolicyTurn, RefusalError


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for a turn, and how it is to be answered."""

    request: ChatRequest
    is_stream: bool = False
    with_usage: bool = False
    """In a stream: a last piece with the numbers of tokens."""
    with_logprobs: bool = False


class Dialect(Protocol):
    """One provider's interface."""

    def read(self, body: Document) -> Wish:
        """The request in a body. Raises RefusalError, which says what to change."""
        ...

    def whole(self, turn: PolicyTurn, wish: Wish) -> Document:
        """The answer as one object."""
        ...

    def events(self, turn: PolicyTurn, wish: Wish) -> Iterator[bytes]:
        """The answer as server-sent events."""
        ...

    def error(self, error: RefusalError) -> Document:
        """A refusal as a body."""
        ...

    def error_events(self, error: RefusalError) -> Iterator[bytes]:
        """A refusal in a stream that has begun."""
        ...


def event(document: Document, name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()
