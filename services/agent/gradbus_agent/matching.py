"""Which turn of an episode a request goes on from.

A request repeats its conversation as text. It extends a turn if its messages begin with that turn's whole history: everything that the turn
was asked, and its answer. Nothing is aligned: a message that differs begins a new sequence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from gradbus_agent.contract import ChatMessage, ChatRequest, canonical, digest

_FOLLOWING = frozenset({"tool", "user"})
"""Roles that a chat template takes after a turn."""


@dataclass(frozen=True, slots=True)
class Match:
    """The turn that a request goes on from; without one it is a conversation of its own."""

    turn: int | None
    following: Sequence[ChatMessage] = ()
    """The messages after the turn."""


class Histories:
    """The histories of an episode's turns, as digests."""

    def __init__(self) -> None:
        self._turns: dict[bytes, int] = {}
        """Digest of a history to its newest turn."""

    def find(self, request: ChatRequest) -> Match:
        """The turn whose history is the longest that the request's messages begin with.

        A history ends with an assistant's message and no such message may follow, so only the one up to the last of them can be it.
        """
        messages = request.messages
        length = next((at for at in range(len(messages), 0, -1) if messages[at - 1].role == "assistant"), 0)
        following = messages[length:]
        if not length or not following or any(message.role not in _FOLLOWING for message in following):
            return Match(None)
        turn = self._turns.get(_history(request, messages[:length]))
        return Match(turn, following if turn is not None else ())

    def add(self, turn: int, request: ChatRequest, answer: ChatMessage) -> None:
        """Keeps the history of a turn: what it was asked, and its answer."""
        self._turns[_history(request, (*request.messages, answer))] = turn


def _history(request: ChatRequest, messages: Sequence[ChatMessage]) -> bytes:
    tools = json.loads(request.tools_json) if request.tools_json else []
    return digest("\n".join([canonical(tools), *map(_canonical_message, messages)]))


def _canonical_message(message: ChatMessage) -> str:
    calls = [[call.call_id, call.name, _arguments(call.arguments)] for call in message.calls]
    return canonical([message.role, message.content, calls, message.call_id])


def _arguments(text: str) -> list[str]:
    """Arguments as a JSON value, since software between writes them again; text that is no JSON as it stands."""
    try:
        return ["json", canonical(json.loads(text))]
    except (ValueError, RecursionError):
        return ["text", text]
