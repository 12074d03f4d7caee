"""What an episode's environment or agent says, and what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gradbus.formats.tokens import pack_ids
from gradbus.tokenizer.turns import ChatCall, ChatConversation, ChatMessage
from gradbus.v1.environment_service_pb2 import AssistantTurn, Conversation, DrawnTokens, StepResponse
from gradbus.v1.episode_pb2 import (
    END_REASON_ANSWERED,
    END_REASON_ENVIRONMENT_DONE,
    END_REASON_MAX_TURNS,
    EndReason,
    Message,
    Turn,
)
from gradbus_rollout.episodes.transcript import Transcript

_MOST_SHOWN: Final = 65_536
"""Characters of a message that a sample keeps: as many as the environment service passes on."""


@dataclass(slots=True)
class Rewards:
    """The rewards of an episode's turns."""

    total: float = 0.0
    given: bool = False
    components: dict[str, float] = field(default_factory=dict)

    def add(self, answer: StepResponse) -> None:
        """Adds what an answer gives."""
        if answer.HasField("reward"):
            self.total += answer.reward
            self.given = True
        for name, value in answer.components.items():
            self.components[name] = self.components.get(name, 0.0) + value


def end_with(answer: StepResponse, turn: Turn, end: EndReason) -> EndReason:
    """Why the episode ends with this answer, if the environment or the policy wanted it so; else `end`."""
    if answer.done:
        return END_REASON_ENVIRONMENT_DONE
    results_left_out = turn.calls and end == END_REASON_MAX_TURNS
    goes_on = answer.messages or answer.HasField("conversation") or results_left_out
    return end if goes_on else END_REASON_ANSWERED


def end_name(end: EndReason) -> str:
    """As environments are told it."""
    return EndReason.Name(end).removeprefix("END_REASON_").lower()


def as_assistant(turn: Turn) -> AssistantTurn:
    """The turn as an environment is told it."""
    return AssistantTurn(text=turn.text, calls=turn.calls, finish=turn.finish, stop_text=turn.stop_text)


def drawn_tokens(transcript: Transcript, turn: Turn) -> DrawnTokens:
    """The turn as an agent is told it beside its text."""
    sequence = transcript.sequences[turn.sequence]
    versions = [span.version for span in sequence.spans if turn.start <= span.start < turn.end]
    return DrawnTokens(
        prompt_tokens=len(sequence.prompt_ids) + turn.start,
        token_ids=pack_ids(sequence.token_ids[turn.start : turn.end]),
        logprobs=bytes(sequence.logprobs[4 * turn.start : 4 * turn.end]),
        version_first=versions[0] if versions else 0,
        version_last=versions[-1] if versions else 0,
    )


def as_chat(messages: Sequence[Message]) -> list[ChatMessage]:
    """Messages for the tokenizer."""
    return [
        ChatMessage(
            message.role,
            message.content,
            message.call_id,
            message.name,
            tuple(ChatCall(call.name, call.arguments_json, call.call_id) for call in message.calls),
        )
        for message in messages
    ]


def as_conversation(given: Conversation) -> ChatConversation:
    """A conversation for the tokenizer."""
    return ChatConversation(as_chat(given.messages), given.tools_json)


def said(answer: StepResponse | Turn) -> tuple[list[tuple[str, str]], float | None, str]:
    """What two answers to one turn have in common."""
    messages = [(message.role, message.content) for message in answer.messages]
    return messages, answer.reward if answer.HasField("reward") else None, answer.state_digest


def shortened(content: str) -> str:
    """A message as a sample keeps it for display: the ids are what is trained. An agent's may be of megabytes."""
    if len(content) <= _MOST_SHOWN:
        return content
    kept = _MOST_SHOWN // 2 - 32
    return f"{content[:kept]}\n[{len(content) - 2 * kept} characters cut]\n{content[-kept:]}"
