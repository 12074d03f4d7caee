"""The connection to the buffer. Only commands of Redis 7.0 are used, so Redis 7, Redis 8 and Valkey all work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gradbus.tls import Identity

_ANSWER_SECONDS = 10.0
"""Far above the longest blocking read (1 s). After it, a frozen or unreachable server is an error, and the command is repeated."""


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """Address of the buffer, and the user."""

    url: str
    user: str = ""
    password: str = ""
    identity: Identity | None = None
    """Shown to a server whose address begins with `rediss:`."""


def open_buffer(settings: BufferSettings) -> Redis:
    """A client that reconnects and repeats commands; so every command used with it must be idempotent."""
    tls: dict[str, Any] = {}
    if settings.identity and settings.url.startswith("rediss:"):
        files = settings.identity
        tls = {"ssl_ca_certs": str(files.authority), "ssl_certfile": str(files.chain), "ssl_keyfile": str(files.key)}
    return Redis.from_url(
        settings.url,
        username=settings.user or None,
        password=settings.password or None,
        protocol=2,
        socket_timeout=_ANSWER_SECONDS,
        socket_connect_timeout=2.0,
        socket_keepalive=True,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.02), 8),
        retry_on_error=[RedisConnectionError, RedisTimeoutError],
        **tls,
    )
