"""uvicorn's HTTP connection with bounds: on headers, on pipelining, and on the time that a slow client may take.

They hold before a request reaches the application, so an unknown client costs no more than its socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final, Literal, cast

import httptools
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gradbus.telemetry.registry import RefusalCause
from gradbus_gateway.http.connection_table import ConnectionTable
from gradbus_gateway.http.problems import ProblemError, problem
from gradbus_gateway.http.refusals import count_refusal

_Fault = tuple[HTTPStatus, RefusalCause, str]
"""Status, cause and detail of a refusal."""
_PIPELINED: Final = 8
"""Requests that may wait for the response to an earlier one of their connection."""
_PIECES: Final = 1000
_PIECE_BYTES: Final = 64
"""A body in more than `_PIECES` pieces needs pieces of this size on average: each piece costs as much as a thousand bytes."""
_LINGER_SECONDS: Final = 5.0
"""How long the rest of a body is discarded after its response: if it were not read, the client would see a reset and no response."""
Part = Literal["head", "body"]


def bounded_protocol(table: ConnectionTable) -> type[asyncio.Protocol]:
    """What uvicorn calls for each new connection. `table.limits` are its limits."""
    return cast("type[asyncio.Protocol]", partial(BoundedConnection, table=table))


async def close_slow_connections(table: ConnectionTable) -> None:
    """Closes the connections whose client is too slow. Called every second."""
    now = asyncio.get_running_loop().time()
    for connection in table:
        connection.check(now)


class BoundedConnection(HttpToolsProtocol):
    """One connection. `check` is called every second; everything else is called by the event loop, the parser and the response."""

    def __init__(self, *given: Any, table: ConnectionTable, **named: Any) -> None:
        super().__init__(*given, **named)
        self.peer = ""
        self._table = table
        self._limits = table.limits
        self._part: Part = "head"
        """Of a request, which is read next."""
        self._since = self.loop.time()
        """Since when the client owes a head, or a body, or the rest of a body that nobody reads."""
        self._head_bytes = 0
        """Received of a head that is not complete, or since the last piece of a body: of its chunks' sizes and of its trailers."""
        self._body_bytes = 0
        self._pieces = 0
        """Of the body."""
        self._unsent_since: float | None = None
        """Since when bytes wait to be sent."""
        self._fault: _Fault = _MALFORMED
        self._abandon: Callable[[], None] | None = None
        """Closes the connection while its TLS handshake is in progress."""

    # The listener

    def accepted(self, host: str, abandon: Callable[[], None]) -> None:
        """Counts a connection of the address `host` before its TLS handshake, during which `abandon` closes it."""
        self.peer, self._abandon = _network(host), abandon
        self._table.opened(self)

    def handshake_over(self) -> None:
        """The TLS handshake has ended. If the connection is not made by now, it never will be."""
        if self._abandon is not None:
            self._table.closed(self)

    # The event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        if self._abandon is None:
            self.peer = _network(self.client[0] if self.client else "")
            self._table.opened(self)
        self._abandon, self._since = None, self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._table.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. uvicorn's own method logs a line for every malformed request."""
        if self.transport.is_closing():
            return  # TLS gives what it has decrypted before
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)  # what the parser passes on sets it back
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(*self._fault)
        except httptools.HttpParserUpgrade:
            return  # the request is handled as if it asked for no upgrade
        else:
            if self._head_bytes > self._limits.head_bytes:
                self._refuse(*_LARGE_HEAD)

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        super().resume_writing()
        self._unsent_since = None

    # The parser

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head_bytes = 1
        self.scope["state"]["peer"] = self.peer

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is complete."""
        super().on_header(name, value)
        if len(self.headers) > self._limits.head_count:
            self._fail(_LARGE_HEAD)

    def on_headers_complete(self) -> None:
        """The head is complete; the application starts unless an earlier request is in progress."""
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._limits.head_bytes:
            self._fail(_LARGE_HEAD)
        if len(self.pipeline) >= _PIPELINED:
            self._fail(_MALFORMED)
        super().on_headers_complete()
        self._part, self._since = "body", self.loop.time()
        self._head_bytes = self._body_bytes = self._pieces = 0
        self._table.works(self)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        super().on_body(body)
        self._head_bytes = 0
        self._body_bytes += len(body)
        self._pieces += 1
        if self._pieces > _PIECES and self._body_bytes < self._pieces * _PIECE_BYTES:
            self._fail(_SMALL_PIECES)

    def on_message_complete(self) -> None:
        """The request is complete."""
        super().on_message_complete()
        self._part, self._since, self._head_bytes = "head", self.loop.time(), 0
        if self.cycle.response_complete:
            self._table.waits(self)

    # The response

    def on_response_complete(self) -> None:
        """The application has responded."""
        super().on_response_complete()
        self._since = self.loop.time()
        if self.cycle.response_complete:  # what is left of a body that nobody reads is no reason to keep the connection
            self._table.waits(self)

    # The clock

    def check(self, now: float) -> None:
        """Closes the connection if the client is too slow. `now` is the event loop's time in seconds."""
        if self._abandon is not None:
            return  # the handshake has a deadline of its own
        if self._has_stalled(now):
            count_refusal("slow_reader", self.peer)
            self.transport.abort()
        elif self.transport.is_closing():
            return
        elif self.cycle is not None and not self.cycle.response_complete:
            self._check_body(now)
        elif self._part == "body":
            if now - self._since > _LINGER_SECONDS:
                self.transport.close()
        elif self._limits.head_seconds and now - self._since > self._limits.head_seconds:
            if self._head_bytes:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, "slow_head", f"the headers took longer than allowed; {_AGAIN}")
            else:
                self.transport.close()

    def _check_body(self, now: float) -> None:
        limits = self._limits
        if self._part == "head" or not limits.body_bytes_per_second:
            return
        if self.flow.read_paused:  # the application is slow, not the client
            self._since, self._body_bytes, self._pieces = now, 0, 0
        elif now - self._since > limits.body_grace_seconds + self._body_bytes / limits.body_bytes_per_second:
            detail = f"the body comes slower than {limits.body_bytes_per_second:g} bytes a second; {_AGAIN}"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "slow_body", detail)

    def _has_stalled(self, now: float) -> bool:
        if not self._limits.write_seconds or not self.transport.get_write_buffer_size():
            self._unsent_since = None
            return False
        if self._unsent_since is None:
            self._unsent_since = now
        return now - self._unsent_since > self._limits.write_seconds

    # Refusals

    def displace(self, cause: RefusalCause) -> None:
        """Closes the connection because of a limit on connections."""
        if self._abandon is not None:
            count_refusal(cause, self.peer)
            self._abandon()
        elif self.cycle is None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, cause, "too many connections are open; close some, or try again in a moment")
        else:  # a client expects no response on a connection that it has used
            count_refusal(cause, self.peer)
            self.transport.close()

    def _fail(self, fault: _Fault) -> None:
        """Makes the parser stop, and the request be refused for this reason."""
        self._fault = fault
        raise ValueError(fault)

    def _refuse(self, status: HTTPStatus, cause: RefusalCause, detail: str) -> None:
        """Counts the cause and closes the connection, with a problem document unless a response is in progress."""
        count_refusal(cause, self.peer)
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not (cycle.response_started or self.pipeline):
            self.transport.write(_response(ProblemError(status, status.phrase.lower().replace(" ", "-"), detail)))
        self.transport.close()


_AGAIN: Final = "send it again, or use a faster connection"
_MALFORMED: Final[_Fault] = (HTTPStatus.BAD_REQUEST, "malformed", "this is no request of HTTP/1.1; see /openapi.json")
_SMALL_PIECES: Final[_Fault] = (HTTPStatus.BAD_REQUEST, "malformed", "the body comes in too small pieces; send larger ones")
_LARGE_HEAD: Final[_Fault] = (
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "head_too_large",
    "the request has too many or too large headers, or too long an address; send fewer cookies and parameters",
)


def _response(error: ProblemError) -> bytes:
    """`error` as the last response of a connection."""
    answer = problem(Request({"type": "http", "path": "/", "query_string": b"", "headers": [], "server": ("gateway", 80)}), error)
    status = HTTPStatus(error.status)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), *(name + b": " + value for name, value in answer.raw_headers)]
    return b"\r\n".join([*lines, b"connection: close", b"", bytes(answer.body)])


def _network(host: str) -> str:
    """The address; of an IPv6 address its /64, which belongs to one client."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network(f"{host}/64", strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)
