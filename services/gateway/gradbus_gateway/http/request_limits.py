"""Gives every request its admission, which authentication and routes ask for their part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradbus_gateway.http.admission import Admission, Admissions
from gradbus_gateway.http.hosts import PROBES
from gradbus_gateway.http.problems import ProblemError, problem

_AUTHENTICATED: Final = "/v1/"
_PIECE_BYTES: Final = 1 << 16


class AdmissionMiddleware:
    """Refuses an address that sends too many requests without a valid key, and ends each admission with its response. Probes pass."""

    def __init__(self, app: ASGIApp, admissions: Admissions, has_key: Callable[[str], bool]) -> None:
        """`has_key`: whether the value of `Authorization` holds a valid key."""
        self._app = app
        self._admissions = admissions
        self._has_key = has_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles the request within its admission."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        admission = state["admission"] = Admission(self._admissions, state.get("peer", ""))
        try:
            # An API key is checked without asking another service, so its holder need not pay for others at the address.
            if not scope["path"].startswith(_AUTHENTICATED) or not self._has_key(Headers(scope=scope).get("authorization", "")):
                admission.check_address()
        except ProblemError as error:
            await problem(Request(scope), error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, _in_pieces(send))
        finally:
            admission.end()


def _in_pieces(send: Send) -> Send:
    """Sends a body piece by piece, so that the request is in progress until its client has read nearly all of the response.

    A body in one piece would wait in the connection's buffer, beyond every limit on requests: many of them would fill the memory.
    """

    async def sent(message: Message) -> None:
        body, start = message.get("body", b""), 0
        while len(body) - start > _PIECE_BYTES:
            await send({**message, "body": body[start : start + _PIECE_BYTES], "more_body": True})
            start += _PIECE_BYTES
        await send({**message, "body": body[start:]} if start else message)

    return sent


def admission_of(request: Request) -> Admission:
    """The admission of `request`."""
    return cast("Admission", request.state.admission)
