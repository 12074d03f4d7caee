"""Accepts TLS connections, and counts them from then on.

A server of asyncio tells nobody of a connection before its handshake is over: clients that never shake hands would take every file that
the process may open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_PAUSE_SECONDS: Final = 1.0
"""After a connection that could not be accepted: most likely there is no file left, and the next attempt would fail at once."""


class CountedConnection(Protocol):
    """An `asyncio.Protocol` that is counted before its connection is made."""

    def accepted(self, host: str, abandon: Callable[[], None]) -> None:
        """A client at the address `host` has connected; `abandon` ends its handshake."""
        ...

    def handshake_over(self) -> None:
        """The handshake has ended. If the connection is not made by now, it never will be."""
        ...


class TlsListener:
    """Accepts connections on a listening socket until it is closed, in place of an `asyncio.Server`."""

    def __init__(
        self, listener: socket.socket, connect: Callable[[], CountedConnection], context: ssl.SSLContext, seconds: float | None
    ) -> None:
        """`connect` makes a new connection; its handshake may take `seconds` (None: the event loop's default, a minute)."""
        self._listener = listener
        self._connect = connect
        self._context = context
        self._seconds = seconds
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name="accept")

    def close(self) -> None:
        """Accepts no more, and ends the handshakes in progress."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Waits until all that `close` has ended is over."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            try:
                client, address = await loop.sock_accept(self._listener)
            except ConnectionError:
                continue  # the client is gone
            except OSError as error:
                _log.warning("connection_not_accepted", error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            connection = self._connect()
            connection.accepted(address[0], partial(_shut, client))
            task = asyncio.create_task(self._handshake(client, connection), name="handshake")
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, client: socket.socket, connection: CountedConnection) -> None:
        loop, protocol = asyncio.get_running_loop(), cast("asyncio.Protocol", connection)
        # What fails is the client's: it speaks no TLS, trusts another authority, is too slow, or gone.
        try:
            with contextlib.suppress(OSError):
                await loop.connect_accepted_socket(lambda: protocol, client, ssl=self._context, ssl_handshake_timeout=self._seconds)
        finally:
            connection.handshake_over()


def _shut(client: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        client.shutdown(socket.SHUT_RDWR)
