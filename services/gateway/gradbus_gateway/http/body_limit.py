"""A bound on every request body, before anything parses it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradbus_gateway.http.problems import ProblemError, problem

JSON_BYTES = 1 << 20
FILES_PATH = "/v1/files"
_MULTIPART_SLACK = 1 << 16


class BodyLimit:
    """Refuses with 413: by Content-Length where there is one, else once the bytes are too many."""

    def __init__(self, app: ASGIApp, file_bytes: int) -> None:
        self._app = app
        self._file_bytes = file_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the request under its limit."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._file_bytes + _MULTIPART_SLACK if scope["path"] == FILES_PATH else JSON_BYTES
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            await problem(Request(scope), _too_large(limit))(scope, receive, send)
            return
        await self._app(scope, _counted(receive, limit), send)


def _counted(receive: Receive, limit: int) -> Receive:
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise _too_large(limit)
        return message

    return bounded


def _too_large(limit: int) -> ProblemError:
    return ProblemError(413, "too-large", f"the body is larger than {limit} bytes; upload datasets and models with POST {FILES_PATH}")
