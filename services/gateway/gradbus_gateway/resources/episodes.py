"""What happened in a sample's environment, as the log has it."""

from __future__ import annotations

from gradbus.resources.episodes import CallResource, EpisodeResource, MessageResource, TurnResource
from gradbus.v1.episode_pb2 import CallStatus, EndReason, Episode, ToolCall, Turn
from gradbus_gateway.resources.public_text import enum_word, public_text


def episode_resource(episode: Episode) -> EpisodeResource:
    """The episode of a log entry."""
    return EpisodeResource(
        end_reason=enum_word(EndReason.Name(episode.end_reason), "END_REASON_"),
        reason=public_text(episode.outcome.reason),
        attempt=episode.attempt,
        environment_digest=episode.environment_digest,
        turns=[turn_resource(turn) for turn in episode.turns],
    )


def turn_resource(turn: Turn) -> TurnResource:
    """The turn of a log entry."""
    messages = [
        MessageResource(role=message.role, content=message.content, call_id=message.call_id, name=message.name) for message in turn.messages
    ]
    return TurnResource(
        sequence=turn.sequence,
        start=turn.start,
        end=turn.end,
        finish=turn.finish,
        stop_text=turn.stop_text,
        after_turn=turn.after_turn if turn.HasField("after_turn") else None,
        text=turn.text,
        calls=[_call(call) for call in turn.calls],
        messages=messages,
        reward=turn.reward if turn.HasField("reward") else None,
    )


def characters(episode: EpisodeResource) -> int:
    """Size of its texts."""
    said = sum(len(message.content) for turn in episode.turns for message in turn.messages)
    return said + sum(len(turn.text) + sum(len(call.arguments) for call in turn.calls) for turn in episode.turns)


def _call(call: ToolCall) -> CallResource:
    status = enum_word(CallStatus.Name(call.status), "CALL_STATUS_")
    return CallResource(call_id=call.call_id, name=call.name, arguments=call.arguments_json, status=status)
