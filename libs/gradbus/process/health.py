"""Serves /healthz and /readyz over minimal HTTP, so that no service needs a web framework for its probes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from gradbus.errors import SettingsError

_REQUEST_SECONDS = 5.0


class Readiness(Protocol):
    """The state that the pages show."""

    ready: bool
    stopping: asyncio.Event


class HealthPages:
    """GET /healthz: 200 while the process answers. GET /readyz: 200 while it can work, else 503."""

    def __init__(self, subject: Readiness) -> None:
        self._subject = subject
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> None:
        """Listens on `host:port`. Raises SettingsError when the address is taken."""
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(self._answer, host, int(port))
        except OSError as error:
            raise SettingsError(f"cannot listen for health probes on {address} ({error}); set GRADBUS_HEALTH to a free address") from None

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server else 0

    async def stop(self) -> None:
        """Stops listening."""
        if self._server:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                status, body = self._page(request.split(b" ", 2))
                head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    def _page(self, request: list[bytes]) -> tuple[str, bytes]:
        path = request[1] if len(request) > 1 and request[0] == b"GET" else b""
        if path == b"/healthz":
            return "200 OK", b"ok\n"
        if path == b"/readyz":
            ready = self._subject.ready and not self._subject.stopping.is_set()
            return ("200 OK", b"ready\n") if ready else ("503 Service Unavailable", b"not ready\n")
        return "404 Not Found", b"try /healthz or /readyz\n"
