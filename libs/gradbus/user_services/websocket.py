"""A WebSocket to a user's service: to its checked addresses, with bounded messages of text."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Message, Ping, RejectConnection, Request, TextMessage
from wsproto.utilities import ProtocolError

from gradbus.errors import UserCodeError
from gradbus.user_services.addresses import Endpoint
from gradbus.user_services.response_bounds import HEAD_BYTES, whole_bytes

_PIECE_BYTES = 16 << 10


class WebSocket:
    """One connection. Any fault of the other side raises UserCodeError, after which the connection is of no use."""

    def __init__(self, name: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], most_bytes: int) -> None:
        self._name = name
        self._reader, self._writer = streams
        self._most_bytes = most_bytes
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []

    @classmethod
    async def connect(cls, name: str, url: str, endpoint: Endpoint, most_bytes: int) -> WebSocket:
        """Connects to `url` at its checked addresses. `name`: of the service in messages. The caller keeps the deadline."""
        parts = urlsplit(url)
        is_secure = parts.scheme == "wss"
        context = ssl.create_default_context() if is_secure else None
        failure: OSError | None = None
        for address in endpoint.addresses:
            try:
                streams = await asyncio.open_connection(
                    str(address), endpoint.port, ssl=context, server_hostname=endpoint.host if is_secure else None
                )
            except OSError as error:
                failure = error
                continue
            socket = cls(name, streams, most_bytes)
            try:
                await socket._upgrade(parts.netloc, f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}")
            except BaseException:
                socket.abort()
                raise
            return socket
        raise UserCodeError(f"{name} failed: {failure}; check that it runs") from failure

    async def send(self, text: str) -> None:
        """Sends one message. If the other side has closed, what it said before is still to be received, and then its end."""
        with contextlib.suppress(OSError, ProtocolError):
            self._writer.write(self._protocol.send(Message(data=text)))
            await self._writer.drain()

    async def receive(self) -> str:
        """The next message. Answers pings meanwhile."""
        parts: list[str] = []
        left = whole_bytes(self._most_bytes)
        while True:
            while self._events:
                event = self._events.pop(0)
                if isinstance(event, TextMessage):
                    parts.append(event.data)
                    if event.message_finished:
                        return "".join(parts)
                elif isinstance(event, Ping):
                    self._writer.write(self._protocol.send(event.response()))
                elif isinstance(event, CloseConnection):
                    raise UserCodeError(f"{self._name} closed the connection ({event.code}); begin again")
                else:
                    raise UserCodeError(f"{self._name} sent a message that is no text; send JSON as text")
            left -= await self._read(min(left, _PIECE_BYTES))
            if left <= 0:
                raise UserCodeError(f"{self._name} sent more than {self._most_bytes >> 20} MiB; shorten its messages")

    def abort(self) -> None:
        """Drops the connection."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Says that it closes, and closes."""
        with contextlib.suppress(OSError, ProtocolError):
            self._writer.write(self._protocol.send(CloseConnection(code=1000)))
            await self._writer.drain()
        self._writer.close()

    async def _upgrade(self, host: str, target: str) -> None:
        self._writer.write(self._protocol.send(Request(host=host, target=target)))
        left = HEAD_BYTES
        while not self._events:
            left -= await self._read(min(left, _PIECE_BYTES))
            if left <= 0:
                raise UserCodeError(f"{self._name} sent too long a head; check that it speaks WebSocket")
        match self._events.pop(0):
            case AcceptConnection():
                return
            case RejectConnection(status_code=status):
                raise UserCodeError(f"{self._name} responded with {status}; it must accept a WebSocket, redirects are not followed")
        raise UserCodeError(f"{self._name} accepts no WebSocket; check its address")

    async def _read(self, most: int) -> int:
        """Reads what has come, as events. Returns its bytes."""
        try:
            data = await self._reader.read(max(1, most))
            self._protocol.receive_data(data or None)
            self._events.extend(self._protocol.events())
        except (OSError, ProtocolError) as error:
            raise UserCodeError(f"{self._name} broke the connection: {error or type(error).__name__}; begin again") from error
        if not data and not self._events:
            raise UserCodeError(f"{self._name} closed the connection; begin again")
        return len(data)
