"""The turns of an episode, between text and tokens: what goes to the tokenizer's process and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a tokenizer's process does without pydantic
    from gradbus.spec.sections import Thinking, ToolParser

Author = Literal["policy", "frame", "tool", "user", "close"]
"""Who wrote tokens of a response. `frame` and `close` are the chat template: `close` is an end of turn that was not drawn."""


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A call in a conversation's history."""

    name: str
    arguments_json: str
    """As it was drawn; a text that is no JSON object stays a text."""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation, as a chat template takes it."""

    role: str
    content: str
    call_id: str = ""
    """Of a tool's result: the call that it answers."""
    name: str = ""
    """Of a tool's result: the tool."""
    calls: tuple[ChatCall, ...] = ()
    """Of the assistant."""


@dataclass(frozen=True, slots=True)
class ChatConversation:
    """A conversation up to where the policy draws."""

    messages: Sequence[ChatMessage]
    tools_json: str = ""
    """Its tools, as those of TurnSettings; empty: these."""


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """What a run lays down for its turns."""

    tools_json: str = "[]"
    """The tools as a JSON list of {name, description, parameters}, in the order in which the template writes them."""
    parser: ToolParser | None = None
    """None: found from the chat template."""
    result_tokens: int = 1024
    """Of one message that follows a turn; of a longer one the beginning and the end are kept. An agent's are never cut."""
    tools_by_conversation: bool = False
    """Conversations bring tools, which are not known yet."""
    thinking: Thinking | None = None
    """What becomes of the thinking in turns that are over; None: the chat template removes none."""
    is_agent: bool = False
    """Conversations are those of an agent: each, and each message in it, may be as long as the context, and what it gives as the
    assistant's words need not be the policy's."""


@dataclass(frozen=True, slots=True)
class DrawnTurn:
    """A turn of the policy, before it is parsed."""

    token_ids: Sequence[int]
    """`[T]`."""
    finish: Literal["stop", "length"]
    tools_json: str = ""
    """Of its conversation."""
    stop: tuple[str, ...] = ()
    """Texts at the first of which it ends, though more was drawn."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call that the policy drew."""

    name: str
    arguments_json: str
    """As it was drawn; of a malformed call its whole text."""
    status: Literal["ok", "malformed", "unknown_tool"]


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A turn of the policy as text."""

    text: str
    """Decoded without special tokens and without the calls."""
    calls: tuple[ParsedCall, ...] = ()
    kept: int | None = None
    """Tokens up to the end of a stop text; None: it has none, and all of its tokens are the turn."""
    stop_text: str = ""
    """The one that it has."""


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """What follows a turn: messages of tools or users, after which the policy draws again."""

    drawn: tuple[int, ...]
    """The ids `[T]` that the policy drew in the turn."""
    messages: Sequence[ChatMessage]


@dataclass(frozen=True, slots=True)
class Extension:
    """The ids between two turns: only new text is encoded."""

    token_ids: tuple[int, ...]
    """`[T]`, up to where the policy draws again."""
    spans: tuple[tuple[int, int, Author], ...]
    """(start, end, author), which cover `[0, T)` without gaps."""
    ends_thinking: bool = False
    """Whether the thinking of the turns before it leaves the context with it."""


@dataclass(frozen=True, slots=True)
class TurnsSoFar:
    """A sequence up to the end of a turn."""

    token_ids: tuple[int, ...]
    """`[T]`, with the prompt's."""
    turns: tuple[tuple[int, int], ...]
    """[start, end) of the turns that the policy drew in it."""
