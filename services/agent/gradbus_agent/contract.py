"""What agents ask and what the policy answers, whichever interface they speak."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradbus.errors import GradbusError

Document = dict[str, Any]
Outcome = Literal["extend", "fork", "untrained"]
"""Whether a request went on from a turn, or began a sequence; an untrained one did neither."""


class RefusalError(GradbusError):
    """A request that is answered with an error.

    `status` 400, 401, 403, 404, 410 and 413 are final; 429 and 503 may be tried again, after `retry_after` seconds.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call."""

    call_id: str
    name: str
    arguments: str
    """As the policy drew it, or as the agent sent it."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation."""

    role: str
    """"system", "user", "assistant" or "tool"."""
    content: str
    calls: tuple[Call, ...] = ()
    """Of the assistant."""
    call_id: str = ""
    """Of a tool's result: the call that it answers."""
    name: str = ""
    """Of a tool's result: the tool."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the policy is asked: a conversation up to where it draws."""

    messages: tuple[ChatMessage, ...]
    tools_json: str = ""
    """A JSON list of {name, description, parameters}; empty without tools."""
    max_tokens: int = 0
    """0: no bound of its own."""
    overridden: tuple[str, ...] = ()
    """Parameters of the request that the run sets."""
    stop: tuple[str, ...] = ()
    """Texts at the first of which the turn ends."""
    is_untrained: bool = False
    """The turn is no part of the sample."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A turn as tokens."""

    prompt_tokens: int = 0
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, int] = (0, 0)
    """The policy versions of the first and the last token."""


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """A turn of the policy, as its agent gets it."""

    episode: str
    attempt: int
    number: int
    """Of the episode's turns; of an untrained one, of these."""
    message: ChatMessage
    finish: Literal["stop", "length"]
    outcome: Outcome
    tokens: Tokens
    model: str
    created: int
    """Unix time in seconds."""
    overridden: tuple[str, ...] = ()
    stop_text: str = ""
    """The one at which it ended; it is not in the message."""

    @property
    def name(self) -> str:
        """Unique to the turn, and the same in each answer with it."""
        return f"{self.episode}.{self.attempt}.{'u' if self.outcome == 'untrained' else ''}{self.number}"

    def notes(self) -> Document:
        """What no provider's interface has, as the field `gradbus` of an answer."""
        return {
            "episode": self.episode,
            "attempt": self.attempt,
            "turn": None if self.outcome == "untrained" else self.number,
            "outcome": self.outcome,
            "versions": list(self.tokens.versions),
            "overridden_parameters": list(self.overridden),
            "stop": self.stop_text or None,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an agent ended its episode."""

    status: Literal["ok", "invalid", "error"]
    reason: str = ""
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a rollout worker gets: what the policy is asked next, or how the episode ended."""

    status: Literal["ok", "invalid", "error", "unknown_session"] = "ok"
    reason: str = ""
    is_away: bool = False
    """With an error: it passes, and the caller asks again."""
    is_queued: bool = False
    """With `is_away`: others of the run are played, so nothing is missing."""
    messages: Sequence[ChatMessage] = ()
    """They follow `after_turn`, or the last turn."""
    after_turn: int | None = None
    conversation: ChatRequest | None = None
    """In place of `messages`: the first turn of a new sequence."""
    max_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    verdict: Verdict | None = None
    """The episode is over."""

    @classmethod
    def error(cls, reason: str) -> Reply:
        """A fault that the policy did not cause: the episode is tried again."""
        return cls("error", reason)

    @classmethod
    def away(cls, reason: str) -> Reply:
        """An error that passes."""
        return cls("error", reason, is_away=True)

    @classmethod
    def queued(cls, played: int, waiting: int) -> Reply:
        """The run's agents play, and have no room for this episode yet."""
        return cls("error", f"queued: {played} episodes of this run are played, {waiting} wait", is_away=True, is_queued=True)

    @classmethod
    def over(cls, verdict: Verdict) -> Reply:
        """The episode is over."""
        return cls(verdict.status, verdict.reason, verdict=verdict)


def canonical(value: object) -> str:
    """The one form of a JSON value: keys sorted, no spaces, whole numbers without a point, as some languages write them again."""
    return json.dumps(_whole(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(part) for key, part in value.items()}
    return [_whole(part) for part in value] if isinstance(value, list) else value
