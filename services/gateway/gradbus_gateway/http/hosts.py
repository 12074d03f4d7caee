"""Checks the Host header, against DNS rebinding: another site whose name resolves to this gateway gets no response.

A browser that opens a served name over HTTPS is told to use nothing else for it from then on (HSTS, RFC 6797).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
PROBES: Final = frozenset({"/healthz", "/readyz"})
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")


class HostCheck:
    """Responds with 421 to requests under a name that the gateway does not serve.

    Requests with an `Authorization` header pass, because another site has no API key. Probes pass, because their responses hold no data.
    """

    def __init__(self, app: ASGIApp, served: Collection[str]) -> None:
        self._app = app
        self._served = LOOPBACK | {name.lower() for name in served}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or responds with 421."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            headers = Headers(scope=scope)
            host = host_name(headers.get("host", ""))
            if "authorization" not in headers and host not in self._served:
                await _refusal(headers.get("host", "")).__call__(scope, receive, send)
                return
            # Not for localhost, where it would hold for the servers on all other ports too.
            if scope["scheme"] == "https" and host in self._served - LOOPBACK:
                send = _with_hsts(send)
        await self._app(scope, receive, send)


def _with_hsts(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), _HSTS]
        await send(message)

    return sent


def host_name(host: str) -> str:
    """The name in a Host header: without the port, in lower case."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower()


def _refusal(host: str) -> PlainTextResponse:
    text = (
        f"This gateway is not served under the name {host[:100]!r}.\n"
        "Open it as http://127.0.0.1 with its port, or ask the operator to add the name to GRADBUS_SERVED_HOSTS.\n"
    )
    return PlainTextResponse(text, 421)
