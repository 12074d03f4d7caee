"""Calls of a user's service over HTTP: to its checked addresses, with bounded responses, without redirects."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

import httpcore2
import httpx2
from opentelemetry import propagate
from opentelemetry.trace import SpanKind

from gradbus.errors import BusyServiceError, UserCodeError
from gradbus.telemetry import Attributes, span
from gradbus.user_services.addresses import DEFAULT_PORTS, AddressPolicy, Endpoint, IPAddress
from gradbus.user_services.bounded_network import BoundedNetwork, BoundedStream
from gradbus.user_services.first_connection import FirstConnection

FAILURES: Final = (httpcore2.NetworkError, httpcore2.ProtocolError, httpx2.InvalidURL, UnicodeError)
"""What a call raises when the service cannot be reached or speaks no HTTP."""
_BUSY: Final = frozenset({429, 502, 503, 504})
_OK: Final = frozenset({200})
CONNECTIONS: Final = 100
_POOLS: Final = 10
"""A pool asks each of its connections whether it is still open, at every request: one of a hundred takes milliseconds for that."""
_IDLE_SECONDS: Final = 4.0
"""How long a connection is kept for the next request: less than servers keep it, uvicorn 5 s, or a request meets its end."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request."""

    method: str
    url: str
    content: bytes = b""
    """JSON, or nothing."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Beside those of every request; names in lower case."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One response, whole."""

    status: int
    headers: Sequence[tuple[str, str]]
    """Names in lower case; one may come several times."""
    body: bytes

    def header(self, name: str) -> str:
        """The first header of the name; empty if there is none."""
        return next((value for key, value in self.headers if key == name), "")


@dataclass(frozen=True, slots=True)
class BodyBounds:
    """Bounds of a response's body."""

    size: int
    """Bytes, because JSON becomes many times larger in memory."""
    pieces: int
    """Pieces in which it comes: each costs as much as some kilobytes."""
    advice: str
    """What to do about a larger one."""


class HttpClient:
    """Calls one user's service. Follows no redirects, keeps no cookies and ignores the environment's proxies."""

    def __init__(self, name: str, policy: AddressPolicy, threads: Executor) -> None:
        """`name`: of the service in messages. `threads`: where to wait for the name service."""
        self._name = name
        self._policy = policy
        self._threads = threads
        self._first_connection = FirstConnection()
        # Not a client with cookies, redirects and settings from the environment, all of which would be the server's to use.
        self._pools = [
            httpcore2.AsyncConnectionPool(
                max_connections=CONNECTIONS // _POOLS, keepalive_expiry=_IDLE_SECONDS, network_backend=BoundedNetwork()
            )
            for _ in range(_POOLS)
        ]
        self._requests = [0] * _POOLS
        """In progress, by pool."""

    async def call(self, request: HttpRequest, bounds: BodyBounds, deadline_seconds: float) -> bytes:
        """The body of the response, whose status must be 200; otherwise as `exchange`."""
        return (await self.exchange(request, bounds, deadline_seconds)).body

    async def exchange(
        self, request: HttpRequest, bounds: BodyBounds, deadline_seconds: float, accepted: Container[int] = _OK
    ) -> HttpResponse:
        """The response, from the first of the checked addresses that accepts the connection. The caller keeps the deadline.

        `accepted`: statuses. Raises UserCodeError for an address, a status or a body that is refused, and one of `FAILURES`.
        """
        endpoint = await self._policy.resolve(request.url, self._threads)
        await self._first_connection.wait(endpoint, deadline_seconds)
        attributes: Attributes = {"http.request.method": request.method, "server.address": endpoint.host, "server.port": endpoint.port}
        with span(request.method, SpanKind.CLIENT, attributes=attributes):
            for address in endpoint.addresses[:-1]:
                with contextlib.suppress(httpcore2.ConnectError):
                    return await self._exchange_at(address, endpoint, request, bounds, accepted)
            return await self._exchange_at(endpoint.addresses[-1], endpoint, request, bounds, accepted)

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(pool.aclose() for pool in self._pools), return_exceptions=True)

    async def _exchange_at(
        self, address: IPAddress, endpoint: Endpoint, request: HttpRequest, bounds: BodyBounds, accepted: Container[int]
    ) -> HttpResponse:
        url = httpx2.URL(request.url)
        pinned = httpcore2.URL(scheme=url.scheme, host=str(address), port=endpoint.port, target=url.raw_path)
        name = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        headers = {"host": name if DEFAULT_PORTS[url.scheme] == endpoint.port else f"{name}:{endpoint.port}"}
        headers |= {"accept": "*/*", "accept-encoding": "identity"}
        if request.content:
            headers |= {"content-type": "application/json", "content-length": str(len(request.content))}
        headers.update(request.headers)
        propagate.inject(headers)
        # TLS verifies the name, although the connection goes to the address.
        extensions = {} if _is_address(endpoint.host) else {"sni_hostname": endpoint.host}
        encoded = [(field.encode(), value.encode()) for field, value in headers.items()]
        async with (
            self._quietest_pool() as pool,
            pool.stream(request.method, pinned, headers=encoded, content=request.content or None, extensions=extensions) as response,
        ):
            if response.status in _BUSY:
                raise BusyServiceError(f"{self._name} responded with {response.status}; it is asked again", response.status)
            if response.status not in accepted:
                raise UserCodeError(f"{self._name} responded with {response.status}; it must respond with 200, redirects are not followed")
            found = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers]
            return HttpResponse(response.status, found, await self._limited_body(response, bounds))

    @contextlib.asynccontextmanager
    async def _quietest_pool(self) -> AsyncIterator[httpcore2.AsyncConnectionPool]:
        """The pool with the fewest requests in progress, of equal ones the first, which has the warm connections."""
        at = min(range(_POOLS), key=self._requests.__getitem__)
        self._requests[at] += 1
        try:
            yield self._pools[at]
        finally:
            self._requests[at] -= 1

    async def _limited_body(self, response: httpcore2.Response, bounds: BodyBounds) -> bytes:
        stream: BoundedStream = response.extensions["network_stream"]
        stream.allow_body(bounds.size)
        body, pieces = bytearray(), 0
        # As it comes, because a small compressed body could become a large one.
        async for piece in response.aiter_stream():
            body += piece
            pieces += 1
            if len(body) > bounds.size:
                raise UserCodeError(f"{self._name} sent more than {bounds.size >> 20} MiB; {bounds.advice}")
            if pieces > bounds.pieces:
                raise UserCodeError(f"{self._name} sent its response in more than {bounds.pieces} chunks; send it whole")
        return bytes(body)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
