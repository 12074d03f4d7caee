"""Readiness probes of NATS, the buffer and the services. A probe answers True or False and never raises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Probe = Callable[[], Awaitable[bool]]
_SECONDS = 2.0


def nats_ready(port: int) -> Probe:
    """NATS is ready when it greets a client: it does so only once JetStream has recovered its state."""

    async def probe() -> bool:
        return (await _exchange(port, b"", 5)).startswith(b"INFO ")

    return probe


def buffer_ready(port: int, user: str, password: str) -> Probe:
    """The buffer is ready when it answers PONG; while it loads its log it answers LOADING."""

    async def probe() -> bool:
        wanted = b"+OK\r\n+PONG\r\n"
        return await _exchange(port, f"AUTH {user} {password}\r\nPING\r\n".encode(), len(wanted)) == wanted

    return probe


def service_ready(port: int) -> Probe:
    """A service is ready when /readyz answers 200."""

    async def probe() -> bool:
        request = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        return (await _exchange(port, request, 12)).endswith(b" 200")

    return probe


async def _exchange(port: int, request: bytes, wanted: int) -> bytes:
    """The first `wanted` bytes of the answer; empty when they do not arrive in time."""
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request)
                return await reader.readexactly(wanted)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return b""
