"""Checks of fields that the interfaces have in common. What cannot be done is refused; what the run sets is counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard

from gradbus.strict_json import has_more_values
from gradbus_agent.contract import ChatMessage, Document, RefusalError

MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 128
_MAX_NAME: Final = 256
_MAX_TOOL_VALUES: Final = 16_384
"""Of the JSON Schemas of all tools."""
_MAX_STOP: Final = 16
GRAMMARS: Final = dict.fromkeys(
    ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "json_schema", "regex", "ebnf"),
    "ask for the format in a message, and check the text",
) | dict.fromkeys(("min_tokens", "ignore_eos", "bad_words", "allowed_token_ids", "logits_processors"), "leave it out")
"""Parameters of open servers by which other tokens are drawn than the policy would draw."""
_NOTHING: Final[tuple[Any, ...]] = (None, [], {}, False, "")


def refused(message: str) -> RefusalError:
    """A request that cannot be answered as it is."""
    return RefusalError(400, "invalid_request", message)


def unsupported(name: str, advice: str) -> RefusalError:
    """A parameter that would draw in another way than the run does."""
    return RefusalError(400, "unsupported_parameter", f"{name} is not supported, for the policy draws as the run says; {advice}")


def overridden(body: Document, names: Iterable[str]) -> tuple[str, ...]:
    """The parameters that are given, and that the run sets."""
    return tuple(name for name in names if body.get(name) is not None)


def check_absent(body: Document, advice: Mapping[str, str]) -> None:
    """Raises RefusalError for a parameter that asks for something; `advice` says by its name what to do."""
    for name, what in advice.items():
        if body.get(name) not in _NOTHING:
            raise unsupported(name, what)


def positive(body: Document, name: str) -> int:
    """A number of tokens; 0 if it is not given. Raises RefusalError."""
    value = body.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refused(f"{name} is no positive integer; send one, or leave it out")
    return min(value, (1 << 31) - 1)


def stop_texts(body: Document, name: str) -> tuple[str, ...]:
    """Texts at which a turn ends: one, or a list. Raises RefusalError."""
    value: Any = body.get(name)
    found = [value] if isinstance(value, str) else value or []
    if not isinstance(found, list) or len(found) > _MAX_STOP or not all(map(_is_name, found)):
        raise refused(f"{name} is no text and no list of at most {_MAX_STOP} texts of 1 to {_MAX_NAME} characters; send such texts")
    return tuple(dict.fromkeys(found))


def flag(body: Document, name: str) -> bool:
    """Whether a flag is set. Raises RefusalError."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise refused(f"{name} is neither true nor false; send one of them")
    return bool(value)


def items(body: Document, name: str, most: int) -> list[Document]:
    """A list of objects. Raises RefusalError."""
    value: Any = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > most or not all(isinstance(one, dict) for one in value):
        raise refused(f"{name} is no list of at most {most} objects; send one")
    return value


def chosen_tools(body: Document) -> list[Document]:
    """The tools that the policy may call, as both interfaces of OpenAI name them. Raises RefusalError if it must call a certain one."""
    tools = items(body, "tools", MAX_TOOLS)
    match body.get("tool_choice"):
        case None | "auto":
            return tools
        case "none":
            return []
    raise unsupported("tool_choice", 'send "auto" or "none"')


def text(value: object, what: str, kinds: tuple[str, ...] = ("text",)) -> str:
    """Content as text: a text, a list of parts of these kinds, or nothing. Raises RefusalError for an image and the like."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refused(f"the content of {what} is no text and no list of parts; send a text")
    parts: list[str] = []
    for part in value:
        match part:
            case {"type": str(kind), "text": str(said)} if kind in kinds:
                parts.append(said)
            case {"type": "refusal", "refusal": str(said)}:
                parts.append(said)
            case str(said):
                parts.append(said)
            case _:
                shown = str(part.get("type") if isinstance(part, dict) else type(part).__name__)[:80]
                raise refused(f"the content of {what} has a part of the type {shown!r}; the policy reads text alone")
    return "".join(parts)


def named(value: object, what: str) -> str:
    """A name or an id. Raises RefusalError."""
    if not _is_name(value):
        raise refused(f"{what} is no text of at most {_MAX_NAME} characters; send one")
    return value


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME


def tools_json(tools: Iterable[tuple[object, object, object]]) -> str:
    """Tools of (name, description, parameters) as JSON; empty without tools. Raises RefusalError."""
    found = []
    for name, description, parameters in tools:
        if not isinstance(description, str | None) or not isinstance(parameters, dict | None):
            raise refused(f"the tool {str(name)[:80]!r} has a description that is no text, or parameters that are no JSON Schema")
        schema = parameters or {"type": "object", "properties": {}}
        found.append({"name": named(name, "the name of a tool"), "description": description or "", "parameters": schema})
    if len({tool["name"] for tool in found}) < len(found):
        raise refused("two tools have one name; rename one")
    if has_more_values(found, _MAX_TOOL_VALUES):
        raise refused(f"the tools have more than {_MAX_TOOL_VALUES} values; give fewer tools, or simpler parameters")
    return json.dumps(found, ensure_ascii=False) if found else ""


def checked(messages: list[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The conversation with the names of the tools whose results it has. Raises RefusalError for one in which the policy is not next."""
    if not messages:
        raise refused("there are no messages; send a conversation")
    if messages[-1].role == "assistant":
        raise refused("the last message is one of the assistant; end with one of the user or a tool, whom the policy answers")
    names = {call.call_id: call.name for message in messages for call in message.calls}
    return tuple(
        ChatMessage(one.role, one.content, one.calls, one.call_id, names.get(one.call_id, one.name)) if one.role == "tool" else one
        for one in messages
    )
