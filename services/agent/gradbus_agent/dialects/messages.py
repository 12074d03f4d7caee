"""`POST /v1/messages`, as Anthropic describes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from gradbus_agent.contract import Call, ChatMessage, ChatRequest, Document, PolicyTurn, RefusalError
from gradbus_agent.dialects.base import Wish, event
from gradbus_agent.dialects.fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    check_absent,
    checked,
    flag,
    items,
    named,
    overridden,
    positive,
    refused,
    stop_texts,
    text,
    tools_json,
    unsupported,
)

_OVERRIDDEN: Final = ("temperature", "top_p", "top_k", "thinking")
_REFUSED: Final = {
    "mcp_servers": "call the servers yourself, and give their tools",
    "container": "leave it out",
    "output_format": "ask for the format in a message, and check the text",
}
_UNSEEN: Final = frozenset({"thinking", "redacted_thinking"})
"""Blocks of other models' answers, which the policy does not have."""
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class Messages:
    """Anthropic's messages."""

    def read(self, body: Document) -> Wish:
        """See `Dialect.read`."""
        check_absent(body, _REFUSED)
        tools = items(body, "tools", MAX_TOOLS)
        match body.get("tool_choice"):
            case None | {"type": "auto"}:
                pass
            case {"type": "none"}:
                tools = []
            case _:
                raise unsupported("tool_choice", "send the type auto or none")
        messages = [ChatMessage("system", text(body["system"], "system"))] if body.get("system") else []
        for at, given in enumerate(items(body, "messages", MAX_MESSAGES)):
            messages += _messages(given, f"message {at}")
        request = ChatRequest(
            messages=checked(messages),
            tools_json=tools_json(_tool(one) for one in tools),
            max_tokens=positive(body, "max_tokens"),
            overridden=overridden(body, _OVERRIDDEN),
            stop=stop_texts(body, "stop_sequences"),
        )
        return Wish(request, flag(body, "stream"))

    def whole(self, turn: PolicyTurn, wish: Wish) -> Document:  # noqa: ARG002 - of the protocol
        """See `Dialect.whole`."""
        said = turn.message
        content: list[Document] = [{"type": "text", "text": said.content}] if said.content or not said.calls else []
        content += [{"type": "tool_use", "id": call.call_id, "name": call.name, "input": _input(call)} for call in said.calls]
        return {**_head(turn), "content": content, **_end(turn), "usage": _usage(turn), "gradbus": turn.notes()}

    def events(self, turn: PolicyTurn, wish: Wish) -> Iterator[bytes]:
        """See `Dialect.events`."""
        usage = {**_usage(turn), "output_tokens": 0}
        start = {**_head(turn), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage, "gradbus": turn.notes()}
        yield _event("message_start", message=start)
        for at, block in enumerate(self.whole(turn, wish)["content"]):
            if block["type"] == "text":
                begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                drawn = next(call.arguments for call in turn.message.calls if call.call_id == block["id"])
                begun, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": drawn}
            yield _event("content_block_start", index=at, content_block=begun)
            yield _event("content_block_delta", index=at, delta=delta)
            yield _event("content_block_stop", index=at)
        yield _event("message_delta", delta=_end(turn), usage=_usage(turn))
        yield _event("message_stop")

    def error(self, error: RefusalError) -> Document:
        """See `Dialect.error`."""
        kind = _TYPES.get(error.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": error.message, "code": error.code}}

    def error_events(self, error: RefusalError) -> Iterator[bytes]:
        """See `Dialect.error_events`."""
        yield event(self.error(error), "error")


class CountTokens(Messages):
    """`POST /v1/messages/count_tokens`, which nobody answers: only the rollout worker has the tokenizer."""

    def read(self, body: Document) -> Wish:  # noqa: ARG002 - of the protocol
        """Raises RefusalError."""
        raise RefusalError(400, "unsupported", "tokens are not counted ahead; the usage of each answer has their exact number")


def _messages(given: Document, what: str) -> Iterator[ChatMessage]:
    """The messages in one: results of tools are messages of their own."""
    match given:
        case {"role": "user", "content": list(blocks)}:
            yield from _user(blocks, what)
        case {"role": "assistant", "content": list(blocks)}:
            yield _assistant(blocks, what)
        case {"role": "user" | "assistant" as role, "content": str(content)}:
            yield ChatMessage(role, content)
        case _:
            raise refused(f"{what} is no {{role, content}} of the user or the assistant with a text or blocks; send one")


def _user(blocks: list[Any], what: str) -> Iterator[ChatMessage]:
    said: list[Any] = []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            if said:
                yield ChatMessage("user", text(said, what))
                said = []
            call_id = named(block.get("tool_use_id"), f"tool_use_id of {what}")
            yield ChatMessage("tool", text(block.get("content"), f"a tool_result of {what}"), call_id=call_id)
        else:
            said.append(block)
    if said:
        yield ChatMessage("user", text(said, what))


def _assistant(blocks: list[Any], what: str) -> ChatMessage:
    said, calls = [], []
    for block in blocks:
        match block:
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(given)}:
                calls.append(Call(call_id, name, json.dumps(given, ensure_ascii=False)))
            case {"type": str(kind)} if kind in _UNSEEN:
                pass
            case _:
                said.append(block)
    return ChatMessage("assistant", text(said, what), tuple(calls))


def _tool(given: Document) -> tuple[object, object, object]:
    if given.get("type", "custom") != "custom":
        raise refused(f"the tool type {str(given['type'])[:80]!r} is Anthropic's own; give a tool with a name and an input_schema")
    return given.get("name"), given.get("description"), given.get("input_schema")


def _input(call: Call) -> Document:
    """The arguments as the object that this interface has; other JSON cannot be told, but as text."""
    try:
        found = json.loads(call.arguments)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"arguments": call.arguments}


def _head(turn: PolicyTurn) -> Document:
    return {"id": f"msg_{turn.name}", "type": "message", "role": "assistant", "model": turn.model}


def _end(turn: PolicyTurn) -> Document:
    if turn.finish == "length":
        reason = "max_tokens"
    elif turn.message.calls:
        reason = "tool_use"
    else:
        reason = "stop_sequence" if turn.stop_text else "end_turn"
    return {"stop_reason": reason, "stop_sequence": turn.stop_text or None}


def _usage(turn: PolicyTurn) -> Document:
    return {"input_tokens": turn.tokens.prompt_tokens, "output_tokens": len(turn.tokens.ids)}


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)
