"""The table of hostile clients: each keeps doing harm over its own connections until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gradbus_hostile.target import Target

_CONNECTIONS: Final = 25
_PAUSE_SECONDS: Final = 0.2


Attack = Callable[[Target], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HostileClient:
    """One kind of hostile client."""

    name: str
    attack: Attack


async def _open(target: Target, port: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(target.host, port or target.port)


async def _for_ever(connections: int, once: Callable[[], Awaitable[None]]) -> None:
    """Repeats `once` over so many connections; a connection that is refused or closed is opened again."""

    async def repeat() -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
                await once()
            await asyncio.sleep(_PAUSE_SECONDS)

    await asyncio.gather(*(repeat() for _ in range(connections)))


def _drips(name: str, start: str, drop: bytes) -> HostileClient:
    """Opens connections, sends `start` with the fields of the target filled in, then `drop` once a second."""

    async def attack(target: Target) -> None:
        async def once() -> None:
            _, writer = await _open(target)
            try:
                writer.write(start.format(host=target.host, key=target.key, run=target.run_id).encode())
                while not writer.is_closing():
                    await writer.drain()
                    await asyncio.sleep(1.0)
                    writer.write(drop)
            finally:
                writer.close()

        await _for_ever(_CONNECTIONS, once)

    return HostileClient(name, attack)


def _floods(
    name: str, requests: Callable[[Target], Iterable[bytes]], connections: int = 4, port: Callable[[Target], int] | None = None
) -> HostileClient:
    """Sends requests one after the other, and reads what comes back."""

    async def attack(target: Target) -> None:
        async def once() -> None:
            reader, writer = await _open(target, port(target) if port else None)
            try:
                for request in requests(target):
                    writer.write(request)
                    await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(5.0):
                        while await reader.read(1 << 16):
                            pass
            finally:
                writer.close()

        await _for_ever(connections, once)

    return HostileClient(name, attack)


def _mute(name: str, path: str, headers: str = "") -> HostileClient:
    """Asks for a stream or a large answer, and never reads."""

    async def attack(target: Target) -> None:
        async def once() -> None:
            _, writer = await _open(target)
            try:
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport can
                writer.write(target.request("GET", path.format(run=target.run_id), headers))
                await asyncio.sleep(30.0)
            finally:
                writer.close()

        await _for_ever(_CONNECTIONS, once)

    return HostileClient(name, attack)


def _raw(payload: bytes) -> Callable[[Target], Iterable[bytes]]:
    return lambda _target: [payload]


def _http(method: str, path: str, headers: str = "", body: bytes = b"") -> Callable[[Target], Iterable[bytes]]:
    return lambda target: [target.request(method, path.format(run=target.run_id), headers, body)]


def _services(number: int) -> Callable[[Target], int]:
    return lambda target: target.ports[number % len(target.ports)] if target.ports else target.port


def _leaves(name: str, start: str, body: bytes = b"") -> HostileClient:
    """Sends `start`, with the fields of the target filled in, and half of a body; then leaves."""

    async def attack(target: Target) -> None:
        async def once() -> None:
            _, writer = await _open(target)
            try:
                writer.write(start.format(host=target.host, key=target.key, run=target.run_id, size=2 * len(body)).encode() + body)
                await writer.drain()
                await asyncio.sleep(_PAUSE_SECONDS)
            finally:
                writer.transport.abort()

        await _for_ever(_CONNECTIONS, once)

    return HostileClient(name, attack)


def _asks(name: str, method: str, *paths: str, headers: str = "", body: bytes = b"") -> HostileClient:
    """Sends a request for each path on a connection, and reads what comes back."""

    def requests(target: Target) -> list[bytes]:
        return [target.request(method, path.format(run=target.run_id), headers, body) for path in paths]

    return _floods(name, requests)


_HEAD: Final = "Host: {host}\r\nAuthorization: Bearer {key}\r\n"
_JSON: Final = "Content-Type: application/json\r\n"
_TOML: Final = "Content-Type: application/toml\r\n"
_STREAM: Final = "Accept: text/event-stream\r\n"
_EVENTS: Final = "/v1/runs/{run}/events"
_ODD_VALUES: Final = ("-1", "1e9", "NaN", "%00", "%F0%9F%92%A3", "9" * 5000, "true", "[]", "1&limit=2", "%", "+1", "0x10", "\u0661")
_DEEP: Final = b"[" * 500_000
_WIDE: Final = json.dumps({f"evil{n}": n for n in range(60_000)}).encode()

CLIENTS: Final = (
    _drips("headers, a byte a second", "GET /v1/runs HTTP/1.1\r\nHost: {host}\r\nX: ", b"x"),
    _drips("a request line without end", "GET /", b"x" * 64),
    _drips("silence after the connection", "", b""),
    _drips(
        "a body, a byte a second",
        "POST /v1/runs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nContent-Length: 90000\r\n\r\n",
        b" ",
    ),
    _drips(
        "an upload, a byte a second, without a key",
        "POST /v1/files HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 900000\r\n\r\n",
        b"-",
    ),
    _drips(
        "chunks of one byte",
        "POST /v1/runs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1\r\n \r\n",
    ),
    _mute("followers that do not read", "/v1/runs/{run}/events", "Accept: text/event-stream\r\n"),
    _mute("lists that nobody reads", "/v1/runs/{run}/samples?limit=1000"),
    _drips(
        "followers",
        "GET /v1/runs/{run}/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nAccept: text/event-stream\r\n\r\n",
        b"",
    ),
    _floods("a header of a megabyte", lambda t: [t.request("GET", "/v1/runs", f"X: {'x' * 2**20}\r\n")]),
    _floods("ten thousand headers", lambda t: [t.request("GET", "/v1/runs", "".join(f"X{n}: x\r\n" for n in range(10_000)))]),
    _floods("bytes that are no HTTP", lambda _t: [os.urandom(4096)]),
    _floods("a TLS greeting", _raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(509))),
    _floods("two lengths", _raw(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 9\r\n\r\n{}")),
    _floods("a negative length", _raw(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n")),
    _floods("a thousand requests at once", lambda t: [t.request("GET", "/v1/runs?limit=100") * 1000]),
    _floods("keys that are guessed", lambda t: [t.request("GET", "/v1/runs").replace(t.key.encode(), os.urandom(16).hex().encode())] * 50),
    _floods("arrays in arrays", _http("POST", "/v1/runs", _JSON, _DEEP)),
    _floods("a spec of sixty thousand fields", _http("POST", "/v1/runs", _JSON, _WIDE)),
    _floods("paths out of the folder", _http("GET", "/static/..%2f..%2f..%2fetc%2fpasswd")),
    _floods("ids beyond int64", _http("GET", "/v1/runs/{run}/events?after=99999999999999999999999999")),
    _floods("pauses and resumes of a run that is not there", _http("POST", "/v1/runs/run-none/pause")),
    _floods("a websocket", _http("GET", "/v1/runs", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n")),
    _floods("noise at the first service", lambda _t: [os.urandom(4096)], port=_services(0)),
    _floods("noise at the second service", lambda _t: [os.urandom(4096)], port=_services(1)),
    _floods("noise at the third service", lambda _t: [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(4096)], port=_services(2)),
    _leaves("followers that come and go", f"GET {_EVENTS} HTTP/1.1\r\n{_HEAD}{_STREAM}\r\n"),
    _leaves("uploads that stop half-way", f"POST /v1/files HTTP/1.1\r\n{_HEAD}Content-Length: {{size}}\r\n\r\n", bytes(1 << 19)),
    _leaves(
        "forms that stop half-way",
        f"POST /v1/files HTTP/1.1\r\n{_HEAD}Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {{size}}\r\n\r\n",
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + bytes(1 << 19),
    ),
    _leaves("submissions that stop half-way", f"POST /v1/runs HTTP/1.1\r\n{_HEAD}{_JSON}Content-Length: {{size}}\r\n\r\n", b"{" * 1000),
    _asks("odd values in a query", "GET", *(f"{_EVENTS}?limit={value}" for value in _ODD_VALUES)),
    _asks("odd values of an event's id", "GET", *(f"{_EVENTS}?after={value}" for value in _ODD_VALUES)),
    _asks("odd samples", "GET", *(f"/v1/runs/{{run}}/samples?{name}={value}" for name in ("step", "after") for value in _ODD_VALUES)),
    _asks("an event's id that is text", "GET", _EVENTS, headers=f"{_STREAM}Last-Event-ID: \u2603\r\n"),
    _asks("ten thousand parameters", "GET", "/v1/runs?" + "&".join(f"evil{n}=1" for n in range(5_000))),
    _asks("methods of nobody", "TRACE", "/v1/runs", "/v1/runs/{run}", "/v1/files"),
    _asks(
        "a body that is compressed", "POST", "/v1/runs", headers=f"{_JSON}Content-Encoding: gzip\r\n", body=gzip.compress(bytes(1 << 24))
    ),
    _asks("text that is no UTF-8", "POST", "/v1/runs", headers=_JSON, body=b'{"name": "\xff\xfe"}'),
    _asks(
        "text and numbers that JSON has not", "POST", "/v1/runs", headers=_JSON, body=b'{"name": "\\ud800", "seed": NaN, "model": 1e999}'
    ),
    _asks("a number of a million digits", "POST", "/v1/runs", headers=_JSON, body=b'{"seed": ' + b"9" * 1_000_000 + b"}"),
    _asks("tables in tables", "POST", "/v1/runs", headers=_TOML, body=b"a=" + b"{a=" * 50_000),
    _asks("a key of dots", "POST", "/v1/runs", headers=_TOML, body=b"a" + b".a" * 50_000 + b"=1"),
    _asks("digests of files that are not there", "GET", *(f"/v1/files/sha256:{n:064x}" for n in range(50))),
    _floods("a chunk of 2^64 bytes", lambda t: [_chunked(t) + b"ffffffffffffffff\r\n{}"]),
    _floods("a chunk without a number", lambda t: [_chunked(t) + b"evil\r\n{}\r\n0\r\n\r\n"]),
    _floods(
        "a request inside a body", lambda t: [t.request("POST", "/v1/runs", _JSON, b"{}") + t.request("DELETE", "/v1/runs/run-none")] * 20
    ),
    _floods("an address as the path", _raw(b"GET http://169.254.169.254/ HTTP/1.1\r\nHost: x\r\n\r\n")),
    _floods("HTTP/2 without being asked", _raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64))),
)


def _chunked(target: Target) -> bytes:
    """The head of a submission in chunks."""
    return target.request("POST", "/v1/runs", _JSON).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
