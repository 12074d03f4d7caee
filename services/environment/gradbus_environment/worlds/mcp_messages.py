"""Messages of MCP: the response to a request of JSON-RPC, in a body or a stream of events, and the text of a result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gradbus.strict_json import parse_json
from gradbus.user_services.http import HttpResponse
from gradbus_environment.answers import AnswerError
from gradbus_environment.contract import Document, canonical
from gradbus_environment.sandbox.world import error_text
from gradbus_environment.worlds.json_client import MAX_VALUES

SESSION: Final = "mcp-session-id"
_MAX_NAME: Final = 1024


def response_to(number: int, response: HttpResponse) -> tuple[str, Document]:
    """(session, response) to a request. Raises AnswerError."""
    name = response.header(SESSION)
    if len(name) > _MAX_NAME or not (name.isascii() and name.isprintable()):
        raise AnswerError("its session has a name that is no visible text")
    is_stream = response.header("content-type").startswith("text/event-stream")
    try:
        for data in _events(response.body) if is_stream else (response.body,):
            said = parse_json(data, MAX_VALUES)
            for one in said if isinstance(said, list) else [said]:
                # A request that the server cannot read is answered without its id.
                if (
                    isinstance(one, dict)
                    and "method" not in one
                    and (one.get("id") == number or (one.get("id") is None and "error" in one))
                ):
                    return name, one
    except ValueError as error:
        raise AnswerError(f"its answer is not JSON: {error} (status {response.status})") from error
    raise AnswerError(f"it sent no response to the request (status {response.status}); it must not end the stream before")


def _events(body: bytes) -> Iterator[bytes]:
    """The data of each event of a stream."""
    data: list[bytes] = []
    for line in [*body.splitlines(), b""]:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and any(data):
            yield b"\n".join(data)
        data = data if line else []


def result_text(result: Document) -> str:
    """What a tool said; an error that it told of is an error that the policy may have caused. Raises AnswerError."""
    content = result.get("content")
    if not isinstance(content, list):
        raise AnswerError("the result of tools/call has no list of content")
    text = "\n".join(map(_text, content))
    if not content and result.get("structuredContent") is not None:
        text = canonical(result["structuredContent"])
    return error_text("tool_failed", text) if result.get("isError") is True else text


def _text(part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)}:
            return error_text("unsupported_content", f"a part of the type {kind[:40]}, which is no text")
    raise AnswerError("a part of the result of tools/call has no type")
