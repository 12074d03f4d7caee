"""Which turn of an episode a request goes on from.

A request repeats its conversation as text. It extends a turn if its messages begin with that turn's whole history: everything that the turn
was asked, and its answer. Nothing is aligned: a message that differs begins a new sequence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gradbus_agent.contract import ChatMessage, ChatRequest, canonical

if TYPE_CHECKING:
    from hashlib import _Hash

_FOLLOWING = frozenset({"tool", "user"})
"""Roles that a chat template takes after a turn."""
_MAX_VALUES: Final = 16_384
"""Of the arguments of a call: larger ones are compared as text."""


@dataclass(frozen=True, slots=True)
class Match:
    """The turn that a request goes on from; without one it is a conversation of its own."""

    turn: int | None
    following: Sequence[ChatMessage] = ()
    """The messages after the turn."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request, with digests of its history. They are computed once, for which a long conversation takes a while."""

    request: ChatRequest
    before: bytes
    """Digest of the history of the turn that it may go on from; empty if it can be none."""
    following: Sequence[ChatMessage]
    """The messages after that turn."""
    asked: _Hash
    """Of tools and messages. It is copied and never changed."""

    @classmethod
    def of(cls, request: ChatRequest) -> Question:
        """Reads all of the request.

        A history ends with an assistant's message and no such message may follow, so only the one up to the last of them can be it.
        """
        messages = request.messages
        length = next((at for at in range(len(messages), 0, -1) if messages[at - 1].role == "assistant"), 0)
        following = messages[length:]
        can_extend = bool(length and following) and all(message.role in _FOLLOWING for message in following)
        tools = json.loads(request.tools_json) if request.tools_json else []
        asked = hashlib.sha256(_line(canonical(tools)))
        before = b""
        for at, message in enumerate(messages, 1):
            asked.update(_line(_canonical_message(message)))
            if at == length and can_extend:
                before = asked.digest()
        return cls(request, before, following if can_extend else (), asked)

    @property
    def key(self) -> bytes:
        """Equal for two requests that ask the same, in whatever interface."""
        request, digest = self.request, self.asked.copy()
        digest.update(_line(canonical([request.max_tokens, list(request.stop), request.is_untrained])))
        return digest.digest()


class Histories:
    """The histories of an episode's turns, as digests."""

    def __init__(self) -> None:
        self._turns: dict[bytes, int] = {}
        """Digest of a history to its newest turn."""

    def find(self, question: Question) -> Match:
        """The turn whose history is the longest that the messages begin with."""
        turn = self._turns.get(question.before)
        return Match(turn, question.following if turn is not None else ())

    def add(self, turn: int, question: Question, answer: ChatMessage) -> None:
        """Keeps the history of a turn: what it was asked, and its answer."""
        history = question.asked.copy()
        history.update(_line(_canonical_message(answer)))
        self._turns[history.digest()] = turn


def _line(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass") + b"\n"  # which JSON does not have within


def _canonical_message(message: ChatMessage) -> str:
    calls = [[call.call_id, call.name, _arguments(call.arguments)] for call in message.calls]
    return canonical([message.role, message.content, calls, message.call_id])


def _arguments(text: str) -> list[str]:
    """Arguments as a JSON value, since software between writes them again; text that is no JSON, or too much, as it stands."""
    if sum(map(text.count, "[{,")) > _MAX_VALUES:
        return ["text", text]
    try:
        return ["json", canonical(json.loads(text))]
    except (ValueError, RecursionError):
        return ["text", text]
