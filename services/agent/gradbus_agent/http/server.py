"""The HTTP server: uvicorn's, with bounds on what a client may do before it is known."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gradbus.process.listener import listen, raise_open_files
from gradbus.process.tls_listener import TlsListener
from gradbus.telemetry import get_logger
from gradbus.tls import Certificate

_log = get_logger(__name__)
_DRAIN_SECONDS: Final = 5
_IDLE_SECONDS: Final = 60
_HEAD_BYTES: Final = 32 << 10
_HEAD_SECONDS: Final = 10.0
_BODY_SECONDS: Final = 60.0
_OTHER_FILES: Final = 256


class HttpServer:
    """Serves an application on an address, over HTTPS alone if it has a certificate."""

    def __init__(self, address: str, https: Certificate | None, app: ASGIApp) -> None:
        """Raises SettingsError when the address is taken."""
        self._listener = listen(address, "GRADBUS_HTTP_LISTEN")
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,  # a path may carry a key
                lifespan="off",
                ws="none",
                http=_BoundedConnection,
                server_header=False,
                limit_concurrency=_most_connections(),
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=_DRAIN_SECONDS,
                ssl_certfile=https.chain if https else None,
                ssl_keyfile=https.key if https else None,
            )
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[asyncio.Task[None]]:
        """Serves inside the block, then finishes the requests in flight, or raises what ended the server. The task ends with the server."""
        serving = asyncio.create_task(self._server.serve([self._listener]), name="http")
        host, port = self._listener.getsockname()[:2]
        _log.info("serving", address=f"{host}:{port}")
        try:
            yield serving
        finally:
            self._server.should_exit = True
            await serving

    @asynccontextmanager
    async def also_on(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serves on one more socket, without TLS, inside the block, which lies in that of `serving`."""
        server = await asyncio.get_running_loop().create_server(self._server.connection, sock=listener)
        try:
            yield
        finally:
            server.close()


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on `sockets`; with a certificate, so that a connection counts before its handshake."""
        if self.config.ssl is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        listeners = [TlsListener(sock, self.connection, self.config.ssl, _HEAD_SECONDS) for sock in sockets or ()]
        self.servers = [cast("asyncio.Server", listener) for listener in listeners]
        self.started = True

    def connection(self) -> _BoundedConnection:
        """A new connection."""
        return _BoundedConnection(config=self.config, server_state=self.server_state, app_state={})

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `gradbus.process`."""
        yield


class _BoundedConnection(HttpToolsProtocol):
    """Closes a connection whose client is slow with a head or a body, or whose head is too large.

    The application is told (`is_crowded` of the scope's state) when few places are left: it refuses turns, and notes whose retries come.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._abandon: Callable[[], None] | None = None
        """During a TLS handshake: ends it."""

    def accepted(self, host: str, abandon: Callable[[], None]) -> None:  # noqa: ARG002 - see CountedConnection
        """A client has connected, and has to shake hands. While there is no place it is sent away."""
        self._abandon = abandon
        self.connections.add(self)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            abandon()

    def handshake_over(self) -> None:
        """The TLS handshake has ended."""
        if self._abandon is not None:
            self.connections.discard(self)

    def shutdown(self) -> None:
        """The server stops."""
        if self._abandon is None:
            super().shutdown()
        else:
            self._abandon()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._abandon = None
        self._owe(_HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._owe(0.0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._owe(_HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        most = self.limit_concurrency or 0
        self.scope["state"]["is_crowded"] = len(self.connections) > most - most // 16
        super().on_headers_complete()
        self._head_bytes = 0
        self._owe(_BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        super().on_body(body)
        self._head_bytes = 0

    def on_message_complete(self) -> None:
        """The request is complete."""
        super().on_message_complete()
        self._head_bytes = 0
        self._owe(0.0)

    def _owe(self, seconds: float) -> None:
        """The client owes a head or a body, within so many seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.close) if seconds else None


def _most_connections() -> int:
    """Raises the limit on open files as far as this process may, and returns how many connections it allows."""
    most = raise_open_files()
    return 16_384 if most is None else max(16, min(16_384, most - _OTHER_FILES))
