"""Limits the size of every request body before it is parsed."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradbus_gateway.http.problems import ProblemError, problem

_JSON_BYTES: Final = 1 << 20
_FILES_PATH: Final = "/v1/files"
_API: Final = "/v1/"
_SIGN_IN_BYTES: Final = 1 << 10
"""Outside the API there is only the code of a sign-in link, read before the caller is known: the shorter, the earlier its deadline."""
_MULTIPART_OVERHEAD: Final = 1 << 16


class BodyLimit:
    """Responds with 413 to a larger body: by its Content-Length if it has one, else as soon as too many bytes have arrived."""

    def __init__(self, app: ASGIApp, file_bytes: int) -> None:
        self._app = app
        self._file_bytes = file_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles the request under the limit of its path."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_of(scope["path"])
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            await problem(Request(scope), _too_large(limit))(scope, receive, send)
            return
        await self._app(scope, _limited(receive, limit), send)

    def _limit_of(self, path: str) -> int:
        if path == _FILES_PATH:
            return self._file_bytes + _MULTIPART_OVERHEAD
        return _JSON_BYTES if path.startswith(_API) else _SIGN_IN_BYTES


def _limited(receive: Receive, limit: int) -> Receive:
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise _too_large(limit)
        return message

    return bounded


def _too_large(limit: int) -> ProblemError:
    return ProblemError(413, "too-large", f"the body is larger than {limit} bytes; upload datasets and models with POST {_FILES_PATH}")
