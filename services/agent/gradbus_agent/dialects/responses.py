"""`POST /v1/responses`, as OpenAI describes it, with the whole conversation in each request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from gradbus_agent.contract import Call, ChatMessage, ChatRequest, Document, PolicyTurn, RefusalError
from gradbus_agent.dialects.base import Wish, event
from gradbus_agent.dialects.chat_completions import ChatCompletions
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
    text,
    tools_json,
    unsupported,
)

_OVERRIDDEN: Final = ("temperature", "top_p", "parallel_tool_calls", "reasoning")
_WHOLE: Final = "send the whole conversation as input"
_REFUSED: Final = {
    "previous_response_id": _WHOLE,
    "conversation": _WHOLE,
    "prompt": _WHOLE,
    "background": "leave it out, and wait for the answer",
    "max_tool_calls": "leave it out",
    "top_logprobs": "leave it out: each drawn token has its own log-probability",
    "stop": "ask by chat completions or messages, which have stop texts",
}
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS: Final = ("input_text", "output_text", "text")
_LOGPROBS: Final = "message.output_text.logprobs"


class Responses:
    """OpenAI's responses."""

    def read(self, body: Document) -> Wish:
        """See `Dialect.read`."""
        check_absent(body, _REFUSED | GRAMMARS)
        match body.get("text"):
            case None | {"format": None | {"type": "text"}}:
                pass
            case dict(given) if "format" not in given:
                pass
            case _:
                raise unsupported("text.format", "ask for the format in a message, and check the text")
        tools = chosen_tools(body)
        instructions = text(body.get("instructions"), "instructions")
        messages = [ChatMessage("system", instructions)] if instructions else []
        request = ChatRequest(
            messages=checked([*messages, *_messages(body)]),
            tools_json=tools_json(_tool(one) for one in tools),
            max_tokens=positive(body, "max_output_tokens"),
            overridden=overridden(body, _OVERRIDDEN),
        )
        include = body.get("include")
        return Wish(request, flag(body, "stream"), with_logprobs=isinstance(include, list) and _LOGPROBS in include)

    def whole(self, turn: PolicyTurn, wish: Wish) -> Document:
        """See `Dialect.whole`."""
        return {**_head(turn), **_end(turn), "output": _output(turn, wish), "usage": _usage(turn)}

    def events(self, turn: PolicyTurn, wish: Wish) -> Iterator[bytes]:
        """See `Dialect.events`."""
        numbers = count()

        def told(kind: str, /, **fields: Any) -> bytes:
            return event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

        begun = {**_head(turn), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        yield told("response.created", response=begun)
        yield told("response.in_progress", response=begun)
        for at, item in enumerate(_output(turn, wish)):
            place = {"item_id": item["id"], "output_index": at}
            if item["type"] == "message":
                (part,) = item["content"]
                within = {**place, "content_index": 0}
                yield told("response.output_item.added", output_index=at, item={**item, "status": "in_progress", "content": []})
                yield told("response.content_part.added", **within, part={**part, "text": "", "logprobs": []})
                yield told("response.output_text.delta", **within, delta=part["text"], logprobs=part["logprobs"])
                yield told("response.output_text.done", **within, text=part["text"], logprobs=part["logprobs"])
                yield told("response.content_part.done", **within, part=part)
            else:
                yield told("response.output_item.added", output_index=at, item={**item, "status": "in_progress", "arguments": ""})
                yield told("response.function_call_arguments.delta", **place, delta=item["arguments"])
                yield told("response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
            yield told("response.output_item.done", output_index=at, item=item)
        name = "response.completed" if turn.finish == "stop" else "response.incomplete"
        yield told(name, response=self.whole(turn, wish))

    def error(self, error: RefusalError) -> Document:
        """See `Dialect.error`."""
        return ChatCompletions().error(error)

    def error_events(self, error: RefusalError) -> Iterator[bytes]:
        """See `Dialect.error_events`."""
        document = {"type": "error", "sequence_number": 0, "code": error.code, "message": error.message, "param": None}
        yield event(document, "error")


def _messages(body: Document) -> Iterator[ChatMessage]:
    """The messages of `input`. What the assistant said one after the other, text and calls, is one turn."""
    if isinstance(given := body.get("input"), str):
        yield ChatMessage("user", given)
        return
    said: list[str] = []
    calls: list[Call] = []
    for at, item in enumerate(items(body, "input", MAX_MESSAGES)):
        match item.get("type", "message"):
            case "function_call":
                calls.append(_call(item, at))
                continue
            case "reasoning":
                continue
            case "message" if item.get("role") == "assistant":
                said.append(text(item.get("content"), f"item {at}", _TEXTS))
                continue
        if said or calls:
            yield ChatMessage("assistant", "".join(said), tuple(calls))
            said, calls = [], []
        yield _other(item, at)
    if said or calls:
        yield ChatMessage("assistant", "".join(said), tuple(calls))


def _other(item: Document, at: int) -> ChatMessage:
    kind, role = item.get("type", "message"), _ROLES.get(str(item.get("role")))
    if kind == "function_call_output":
        call_id = named(item.get("call_id"), f"call_id of item {at}")
        return ChatMessage("tool", text(item.get("output"), f"item {at}", _TEXTS), call_id=call_id)
    if kind != "message" or role is None:
        raise refused(f"item {at} has the type {str(kind)[:80]!r}; send messages, function calls and their outputs")
    return ChatMessage(role, text(item.get("content"), f"item {at}", _TEXTS))


def _call(item: Document, at: int) -> Call:
    match item:
        case {"call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
            return Call(call_id, name, arguments)
    raise refused(f"item {at} is no function call of call_id, name and arguments as texts; send it as it came")


def _tool(given: Document) -> tuple[object, object, object]:
    if given.get("type") != "function":
        raise refused(f"the tool type {str(given.get('type'))[:80]!r} is OpenAI's own; give functions")
    return given.get("name"), given.get("description"), given.get("parameters")


def _head(turn: PolicyTurn) -> Document:
    return {
        "id": f"resp_{turn.name}",
        "object": "response",
        "created_at": turn.created,
        "model": turn.model,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "gradbus": turn.notes(),
    }


def _end(turn: PolicyTurn) -> Document:
    if turn.finish == "length":
        return {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return {"status": "completed", "incomplete_details": None}


def _output(turn: PolicyTurn, wish: Wish) -> list[Document]:
    said, output = turn.message, []
    if said.content or not said.calls:
        pairs = zip(turn.tokens.ids, turn.tokens.logprobs, strict=True) if wish.with_logprobs else ()
        logprobs = [{"token": f"token_id:{token}", "logprob": value, "bytes": [], "top_logprobs": []} for token, value in pairs]
        part = {"type": "output_text", "text": said.content, "annotations": [], "logprobs": logprobs}
        output.append({"type": "message", "id": f"msg_{turn.name}", "role": "assistant", "status": "completed", "content": [part]})
    for call in said.calls:
        fields = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments, "status": "completed"}
        output.append({"type": "function_call", "id": f"fc_{turn.name}.{call.call_id}", **fields})
    return output


def _usage(turn: PolicyTurn) -> Document:
    prompt, drawn = turn.tokens.prompt_tokens, len(turn.tokens.ids)
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {"input_tokens": prompt, "output_tokens": drawn, "total_tokens": prompt + drawn, **details}
