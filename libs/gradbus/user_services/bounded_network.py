"""Connections to users' services: what such a server sends is read in small pieces, up to a bound.

A client of HTTP parses everything that has arrived before another task has its turn. Chunks of one byte and interim responses cost a
hundred times their size, and the servers of all runs share the event loop.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, Final

import httpcore2

from gradbus.errors import UserCodeError
from gradbus.user_services.response_bounds import HEAD_BYTES, whole_bytes

_PIECE_BYTES: Final = 4 << 10


class BoundedStream(httpcore2.AsyncNetworkStream):
    """A connection that fails when the server sends more than it may."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left = HEAD_BYTES

    def allow_body(self, size: int) -> None:
        """From here on a body of `size` bytes may come, until the next request is sent."""
        self._left = whole_bytes(size)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """At most a small piece. Raises UserCodeError beyond the bound."""
        data = await self._stream.read(min(max_bytes, _PIECE_BYTES), timeout)
        self._left -= len(data)
        if self._left < 0:
            raise UserCodeError("the server sent more than a response needs; send one response with a short head, in large chunks or whole")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Sends a part of a request, which a new response follows."""
        self._left = HEAD_BYTES
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> BoundedStream:
        """The same over TLS."""
        return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks about the socket."""
        return self._stream.get_extra_info(info)


class BoundedNetwork(httpcore2.AnyIOBackend):
    """Opens connections that are bounded."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> BoundedStream:
        """A connection over TCP."""
        return BoundedStream(await super().connect_tcp(host, port, timeout, local_address, socket_options))
