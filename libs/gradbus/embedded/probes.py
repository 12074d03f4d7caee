"""Asks a process, in its own tongue, whether it can do its work. Each answers True or False, never raises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Probe = Callable[[], Awaitable[bool]]
_SECONDS = 2.0


def nats_answers(port: int) -> Probe:
    """NATS greets a client only once JetStream has recovered its state."""

    async def probe() -> bool:
        return (await _exchange(port, b"", 5)).startswith(b"INFO ")

    return probe


def buffer_answers(port: int, user: str, password: str) -> Probe:
    """The buffer says PONG once its log is loaded (LOADING before)."""

    async def probe() -> bool:
        wanted = b"+OK\r\n+PONG\r\n"
        return await _exchange(port, f"AUTH {user} {password}\r\nPING\r\n".encode(), len(wanted)) == wanted

    return probe


def service_ready(port: int) -> Probe:
    """A service says 200 on /readyz."""

    async def probe() -> bool:
        request = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        return (await _exchange(port, request, 12)).endswith(b" 200")

    return probe


async def _exchange(port: int, request: bytes, wanted: int) -> bytes:
    """The first `wanted` bytes of the answer; empty when there is no such answer in time."""
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
