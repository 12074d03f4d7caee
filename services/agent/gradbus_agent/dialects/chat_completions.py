"""`POST /v1/chat/completions`, as OpenAI describes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gradbus_agent.contract import Call, ChatMessage, ChatRequest, Document, PolicyTurn, RefusalError
from gradbus_agent.dialects.base import Wish, event
from gradbus_agent.dialects.fields import (
    GRAMMARS,
    MAX_MESSAGES,
    check_absent,
    checked,
    chosen_tools,
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

_OVERRIDDEN: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("parallel_tool_calls", "reasoning_effort", "verbosity"),
)
_REFUSED: Final = {
    "logit_bias": "leave it out",
    "top_logprobs": "leave it out: each drawn token has its own log-probability",
    "functions": "send tools",
    "function_call": "send tools",
    "audio": "leave it out",
    "prediction": "leave it out",
    "web_search_options": "leave it out, and give a tool of your own",
}
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TYPES: Final = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ChatCompletions:
    """OpenAI's chat completions."""

    def read(self, body: Document) -> Wish:
        """See `Dialect.read`."""
        check_absent(body, _REFUSED | GRAMMARS)
        for name in ("n", "best_of"):
            if body.get(name) not in (None, 1):  # no set: they may be unhashable
                raise unsupported(name, "ask again for another answer")
        match body.get("response_format"):
            case None | {"type": "text"}:
                pass
            case _:
                raise unsupported("response_format", "ask for the format in a message, and check the text")
        tools = chosen_tools(body)
        messages = [_message(one, at) for at, one in enumerate(items(body, "messages", MAX_MESSAGES))]
        request = ChatRequest(
            messages=checked(messages),
            tools_json=tools_json(_tool(one) for one in tools),
            max_tokens=positive(body, "max_completion_tokens") or positive(body, "max_tokens"),
            overridden=overridden(body, _OVERRIDDEN),
            stop=stop_texts(body, "stop"),
        )
        options = body.get("stream_options")
        with_usage = isinstance(options, dict) and options.get("include_usage") is True
        return Wish(request, flag(body, "stream"), with_usage, flag(body, "logprobs"))

    def whole(self, turn: PolicyTurn, wish: Wish) -> Document:
        """See `Dialect.whole`."""
        message: Document = {"role": "assistant", "content": turn.message.content, "refusal": None}
        if turn.message.calls:
            message["tool_calls"] = [_call(call) for call in turn.message.calls]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _logprobs(turn, wish),
            "finish_reason": _finish(turn),
            "token_ids": list(turn.tokens.ids),
        }
        return {**_head(turn, "chat.completion"), "choices": [choice], "usage": _usage(turn), "gradbus": turn.notes()}

    def events(self, turn: PolicyTurn, wish: Wish) -> Iterator[bytes]:
        """See `Dialect.events`."""
        head = _head(turn, "chat.completion.chunk")

        def piece(delta: Document, **fields: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **fields}
            return event({**head, "choices": [choice], **({"usage": None} if wish.with_usage else {})})

        yield piece({"role": "assistant", "content": ""})
        if turn.message.content:
            yield piece({"content": turn.message.content}, logprobs=_logprobs(turn, wish))
        for at, call in enumerate(turn.message.calls):
            yield piece({"tool_calls": [{"index": at, **_call(call)}]})
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish(turn), "token_ids": list(turn.tokens.ids)}
        yield event({**head, "choices": [last], "gradbus": turn.notes(), **({"usage": None} if wish.with_usage else {})})
        if wish.with_usage:
            yield event({**head, "choices": [], "usage": _usage(turn)})
        yield b"data: [DONE]\n\n"

    def error(self, error: RefusalError) -> Document:
        """See `Dialect.error`."""
        kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
        return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}

    def error_events(self, error: RefusalError) -> Iterator[bytes]:
        """See `Dialect.error_events`."""
        yield event(self.error(error))


def _message(given: Document, at: int) -> ChatMessage:
    role = _ROLES.get(str(given.get("role")))
    if role is None:
        raise refused(f"message {at} has the role {str(given.get('role'))[:80]!r}; send one of {', '.join(_ROLES)}")
    content = text(given.get("content"), f"message {at}")
    if role == "tool":
        return ChatMessage(role, content, call_id=named(given.get("tool_call_id"), f"tool_call_id of message {at}"))
    calls = tuple(_given_call(one, at) for one in items(given, "tool_calls", MAX_MESSAGES)) if role == "assistant" else ()
    return ChatMessage(role, content, calls)


def _given_call(given: Document, at: int) -> Call:
    match given:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
            return Call(call_id, name, arguments)
    raise refused(f"a tool call of message {at} is no {{id, type, function: {{name, arguments}}}} of texts; send it as it came")


def _tool(given: Document) -> tuple[object, object, object]:
    function = given.get("function")
    if given.get("type", "function") != "function" or not isinstance(function, dict):
        raise refused("a tool is no {type: function, function: {name, description, parameters}}; send functions")
    return function.get("name"), function.get("description"), function.get("parameters")


def _head(turn: PolicyTurn, kind: str) -> Document:
    return {"id": f"chatcmpl-{turn.name}", "object": kind, "created": turn.created, "model": turn.model}


def _call(call: Call) -> Document:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(turn: PolicyTurn) -> str:
    return "length" if turn.finish == "length" else "tool_calls" if turn.message.calls else "stop"


def _logprobs(turn: PolicyTurn, wish: Wish) -> Document | None:
    """Of the tokens that were drawn. Tokens are named by their ids: several may be one character."""
    if not wish.with_logprobs:
        return None
    pairs = zip(turn.tokens.ids, turn.tokens.logprobs, strict=True)
    drawn: list[Document] = [{"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []} for token, value in pairs]
    return {"content": drawn, "refusal": None}


def _usage(turn: PolicyTurn) -> Document:
    prompt, drawn = turn.tokens.prompt_tokens, len(turn.tokens.ids)
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}
