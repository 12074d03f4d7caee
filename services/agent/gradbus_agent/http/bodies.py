"""Bodies of requests as JSON objects, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request
from starlette.types import Receive

from gradbus.strict_json import parse_json
from gradbus_agent.contract import Document, RefusalError

MAX_BODY: Final = 4 << 20
MAX_VALUES: Final = 262_144
"""Of a conversation, whose texts have commas too. Of other bodies:"""
_MAX_FIELDS: Final = 4096


async def read_body(request: Request) -> bytes:
    """The body. Raises RefusalError for one that is too large, and ClientDisconnect."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY:
        raise _too_large()
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise _too_large()
    return bytes(body)


@asynccontextmanager
async def watched(receive: Receive) -> AsyncIterator[asyncio.Task[None]]:
    """A task that is done when the client is gone, once the body was read."""
    gone = asyncio.create_task(_disconnected(receive), name="disconnect")
    try:
        yield gone
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def read_object(body: bytes, most: int = _MAX_FIELDS) -> Document:
    """The object of at most so many values in a body; of an empty one, an empty object. Raises RefusalError."""
    if not body:
        return {}
    try:
        found = parse_json(body, most)
    except ValueError as error:
        raise RefusalError(400, "invalid_json", f"the body is not JSON: {error}; send a JSON object") from None
    if not isinstance(found, dict):
        raise RefusalError(400, "invalid_json", "the body is no JSON object; send one")
    return found


def _too_large() -> RefusalError:
    return RefusalError(413, "body_too_large", f"the body is larger than {MAX_BODY >> 20} MiB; send a shorter conversation")
