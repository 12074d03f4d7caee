"""Items of OpenAI's Responses API, in which NeMo Gym writes conversations: from a row to messages and tools, from turns to responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gradbus_environment.answers import AnswerError
from gradbus_environment.contract import Document, Move, ToolDescription
from gradbus_environment.worlds.http import described_tools
from gradbus_environment.worlds.nemo_gym.server import InvalidEpisodeError

_ROLES: Final = {"developer": "system"}
_TEXTS: Final = frozenset({"input_text", "output_text"})


def row_of(item: Mapping[str, Any]) -> tuple[Document, list[Document], list[ToolDescription]]:
    """Parameters, messages and tools of a row that begins an episode. Raises InvalidEpisodeError."""
    try:
        parameters = parameters_of(item)
        return parameters, messages_of(parameters), tools_of(parameters)
    except AnswerError as error:
        raise InvalidEpisodeError(str(error)) from error


def parameters_of(item: Mapping[str, Any]) -> Document:
    """`responses_create_params` of a row; of a row without any, its prompt. Raises AnswerError."""
    given = item.get("responses_create_params", {"input": item.get("prompt")})
    if not isinstance(given, dict) or not isinstance(given.get("input"), str | list):
        raise AnswerError("the row has no responses_create_params with an input, and no prompt; add the column to the dataset")
    return given


def messages_of(parameters: Mapping[str, Any]) -> list[Document]:
    """The conversation that a row begins with. Raises AnswerError."""
    given = parameters["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    instructions = parameters.get("instructions")
    before = [{"role": "system", "content": instructions}] if instructions else []
    return [_message(one) for one in [*before, *items]]


def tools_of(parameters: Mapping[str, Any]) -> list[ToolDescription]:
    """The functions that a row offers. Raises AnswerError."""
    given = parameters.get("tools") or []
    if not isinstance(given, list) or not all(isinstance(one, dict) and one.get("type") == "function" for one in given):
        raise AnswerError("responses_create_params.tools is no list of tools of the type function; leave out the others")
    plain = {"type": "object", "properties": {}}
    return described_tools(
        [{**one, "description": one.get("description") or one.get("name"), "parameters": one.get("parameters") or plain} for one in given]
    )


def output_of(move: Move, calls: Sequence[Mapping[str, str]]) -> list[Document]:
    """The items of a turn: its text, with that of calls that are malformed, and `calls`."""
    drawn = [move.assistant["text"], *(call["arguments"] for call in move.assistant["calls"] if call["status"] == "malformed")]
    text = "\n".join(part for part in drawn if part)
    content = [{"type": "output_text", "text": text, "annotations": []}]
    said = {"type": "message", "id": f"msg_{move.turn}", "role": "assistant", "status": "completed", "content": content}
    return [*([said] if text or not calls else []), *(_call(call) for call in calls)]


def result_of(call_id: str, text: str) -> Document:
    """The item of a call's result."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def response_of(output: Sequence[Document], tools: Any, *, name: str, is_cut: bool) -> Document:
    """A response with this output. `is_cut`: its last turn was cut off."""
    incomplete = {"reason": "max_output_tokens"} if is_cut else None
    return {
        "id": f"resp_{name}",
        "created_at": 0,
        "model": "policy",
        "object": "response",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": tools or [],
        "incomplete_details": incomplete,
        "status": "incomplete" if is_cut else "completed",
    }


def _call(call: Mapping[str, str]) -> Document:
    names = {"id": f"fc_{call['call_id']}", "call_id": call["call_id"]}
    return {"type": "function_call", **names, "name": call["name"], "arguments": call["arguments"], "status": "completed"}


def _message(given: Any) -> Document:
    match given:
        case {"role": str(role), "content": str(content)}:
            return {"role": _ROLES.get(role, role), "content": content}
        case {"role": str(role), "content": [*parts]} if all(
            isinstance(part, dict) and part.get("type") in _TEXTS and isinstance(part.get("text"), str) for part in parts
        ):
            return {"role": _ROLES.get(role, role), "content": "".join(part["text"] for part in parts)}
    raise AnswerError("responses_create_params.input has an item that is no message of text; begin with messages alone")
