"""From the rollout worker's messages to an agent's answers, and back."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Final

from gradbus.formats.tokens import unpack_ids, unpack_logprobs
from gradbus.spec.sections import EnvironmentSpec
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.episode_pb2 import CALL_STATUS_MALFORMED, CALL_STATUS_OK, Message, ToolCall
from gradbus_agent.contract import Call, ChatMessage, ChatRequest, Document, Outcome, PolicyTurn, Reply, Tokens

_STATUS: Final = {
    "ok": pb.ENVIRONMENT_STATUS_OK,
    "invalid": pb.ENVIRONMENT_STATUS_INVALID,
    "error": pb.ENVIRONMENT_STATUS_ERROR,
    "unknown_session": pb.ENVIRONMENT_STATUS_UNKNOWN_SESSION,
}


@dataclass(frozen=True, slots=True)
class Opening:
    """The begin of an episode."""

    run_id: str
    episode_id: str
    attempt: int
    player: str
    item_json: str
    section: EnvironmentSpec
    traceparent: str = field(default="", compare=False)
    """W3C trace context of its group; empty if it has none."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Of the episode as this player plays it."""
        return self.run_id, self.player, self.episode_id

    @property
    def is_shared(self) -> bool:
        """Whether it has a journal, by which the next worker goes on with it."""
        return not self.player

    @property
    def agent(self) -> str:
        """`pull`, or the URL to which episodes are posted."""
        return self.section.agent or "pull"

    def document(self, base_url: str, api_key: str) -> Document:
        """As an agent gets it."""
        section = self.section
        limits = {"max_turns": section.max_turns, "max_tokens": section.max_tokens, "invalid_calls": section.invalid_calls}
        return {
            "run": self.run_id,
            "episode": self.episode_id,
            "attempt": self.attempt,
            "base_url": base_url,
            "api_key": api_key,
            "model": self.run_id,
            "item": json.loads(self.item_json),
            "limits": limits,
            "lease_seconds": section.step_seconds,
            "traceparent": self.traceparent or None,
        }


def policy_turn(opening: Opening, request: pb.StepRequest, asked: ChatRequest, outcome: Outcome) -> PolicyTurn:
    """The turn as its agent gets it. A malformed call is text: no agent could execute it."""
    drawn = request.assistant
    malformed = [call.arguments_json for call in drawn.calls if call.status == CALL_STATUS_MALFORMED]
    calls = tuple(Call(call.call_id, call.name, call.arguments_json) for call in drawn.calls if call.status != CALL_STATUS_MALFORMED)
    return PolicyTurn(
        episode=opening.episode_id,
        attempt=opening.attempt,
        number=request.untrained if request.is_untrained else request.turn,
        message=ChatMessage("assistant", "".join([drawn.text, *malformed]), calls),
        finish="length" if drawn.finish == "length" else "stop",
        outcome=outcome,
        tokens=_tokens(drawn.drawn),
        model=opening.run_id,
        created=int(time.time()),
        overridden=asked.overridden,
        stop_text=drawn.stop_text,
    )


def open_response(session: str, reply: Reply) -> pb.OpenResponse:
    """The response to Open."""
    response = pb.OpenResponse(
        status=_STATUS[reply.status],
        reason=reply.reason,
        is_away=reply.is_away,
        is_queued=reply.is_queued,
        max_new_tokens=reply.max_new_tokens,
        stop=reply.stop,
    )
    if reply.status == "ok":
        response.session = session
    if reply.conversation is not None:
        response.conversation.CopyFrom(_conversation(reply.conversation))
    return response


def step_response(reply: Reply) -> pb.StepResponse:
    """The response to Step."""
    response = pb.StepResponse(
        status=_STATUS[reply.status],
        reason=reply.reason,
        is_away=reply.is_away,
        messages=map(_message, reply.messages),
        after_turn=reply.after_turn,
        max_new_tokens=reply.max_new_tokens,
        stop=reply.stop,
    )
    if reply.conversation is not None:
        response.conversation.CopyFrom(_conversation(reply.conversation))
    if reply.verdict is not None and reply.status == "ok":
        response.done = True
        response.components.update(reply.verdict.components)
        if reply.verdict.reward is not None:
            response.reward = reply.verdict.reward
    return response


def _conversation(request: ChatRequest) -> pb.Conversation:
    return pb.Conversation(messages=map(_message, request.messages), tools_json=request.tools_json, untrained=request.is_untrained)


def _message(message: ChatMessage) -> Message:
    calls = [ToolCall(call_id=call.call_id, name=call.name, arguments_json=call.arguments, status=CALL_STATUS_OK) for call in message.calls]
    return Message(role=message.role, content=message.content, call_id=message.call_id, name=message.name, calls=calls)


def _tokens(drawn: pb.DrawnTokens) -> Tokens:
    versions = drawn.version_first, drawn.version_last
    return Tokens(drawn.prompt_tokens, unpack_ids(drawn.token_ids), unpack_logprobs(drawn.logprobs), versions)
