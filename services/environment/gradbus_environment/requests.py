"""From protobuf requests to what environments are asked, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gradbus.v1 import environment_service_pb2 as pb
from gradbus_environment.contract import CALL_STATUS, DETERMINISM, STATUS, Answer, Description, Move, Opening, ToolDescription


def opening_of(request: pb.OpenRequest) -> Opening:
    """The opening that is asked for."""
    return Opening(request.run_id, request.episode_id, request.attempt, request.item_json or "{}", request.seed, request.player)


def move_of(request: pb.StepRequest, most_calls: int) -> Move:
    """The policy's turn with its first `most_calls` calls."""
    assistant = request.assistant
    calls = [
        {
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments_json,
            "status": CALL_STATUS.get(call.status, "malformed"),
        }
        for call in assistant.calls
    ]
    turn = {"text": assistant.text, "calls": calls[:most_calls], "finish": assistant.finish}
    return Move(
        request.turn, turn, request.is_last, request.end_reason, tuple((call["call_id"], call["name"]) for call in calls[most_calls:])
    )


def description_message(description: Description) -> pb.DescribeResponse:
    """The response to Describe."""
    tools = [
        pb.Tool(name=one.name, description=_utf8(one.description), parameters_json=_utf8(one.parameters_json)) for one in description.tools
    ]
    return pb.DescribeResponse(
        name=_utf8(description.name),
        digest=description.digest,
        determinism=DETERMINISM[description.determinism],
        tools=tools,
        tools_by_conversation=description.tools_by_episode,
        sandbox=description.sandbox,
    )


def open_message(session: str, answer: Answer) -> pb.OpenResponse:
    """The response to Open. An episode with tools of its own has them beside its messages, as one conversation."""
    conversation = pb.Conversation(messages=answer.messages, tools_json=_tools_json(answer.tools)) if answer.tools else None
    return pb.OpenResponse(
        status=STATUS[answer.status],
        reason=_utf8(answer.reason),
        session=session,
        messages=() if answer.tools else answer.messages,
        conversation=conversation,
        state_digest=answer.state_digest,
        is_away=answer.is_away,
    )


def step_message(answer: Answer) -> pb.StepResponse:
    """The response to Step."""
    components: Mapping[str, float] = answer.components
    return pb.StepResponse(
        status=STATUS[answer.status],
        reason=_utf8(answer.reason),
        messages=answer.messages,
        reward=answer.reward,
        components=components,
        done=answer.done,
        state_digest=answer.state_digest,
        is_away=answer.is_away,
    )


def _tools_json(tools: Sequence[ToolDescription]) -> str:
    listed = [{"name": one.name, "description": one.description, "parameters": json.loads(one.parameters_json)} for one in tools]
    return _utf8(json.dumps(listed, ensure_ascii=False))


def _utf8(text: str) -> str:
    """`text` without halves of surrogate pairs, which Python and JSON allow, but not protobuf."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
