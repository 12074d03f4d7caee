"""What happened in a sample's environment."""

from __future__ import annotations

from pydantic import BaseModel, Field


class MessageResource(BaseModel):
    """A message of a conversation."""

    role: str
    content: str
    call_id: str = Field("", description="Of a tool's result: the call that it answers.")
    name: str = Field("", description="Of a tool's result: the tool.")


class CallResource(BaseModel):
    """A tool call of the policy."""

    call_id: str
    name: str
    arguments: str = Field(description="As the policy drew it; of a malformed call its whole text.")
    status: str = Field(description="`ok`, `malformed` or `unknown_tool`.")


class TurnResource(BaseModel):
    """A turn of the policy, and what the environment answered."""

    sequence: int = Field(0, description="In which of the sample's sequences its tokens are: 0 is its own, k its k-th fork.")
    start: int = Field(description="Its first token, counted in the sequence's response tokens.")
    end: int = Field(description="One past its last token.")
    finish: str
    stop_text: str = Field("", description="The agent's stop text at which it ended; it is not in `text`, and its tokens are the turn's.")
    after_turn: int | None = Field(
        None, description="Of the first turn of a sequence that goes on without the thinking so far: from which turn, counted from 0."
    )
    text: str = Field(description="Decoded, without its calls.")
    calls: list[CallResource]
    messages: list[MessageResource] = Field(description="The environment's answer.")
    reward: float | None = Field(description="Null if the environment gave none for this turn.")


class EpisodeResource(BaseModel):
    """The life of a sample in its environment."""

    end_reason: str = Field(
        description="`answered`, `environment_done`, `max_turns`, `max_tokens`, `context`, `invalid_calls`, `length`, or `failed`: then "
        "the sample is masked, and `reason` says why."
    )
    reason: str
    attempt: int = Field(description="Attempts before this one failed for a fault of the environment.")
    environment_digest: str
    turns: list[TurnResource]
