"""How to reach the buffer. Commands are those of Redis 7.0, so Redis 7 and 8 and Valkey all serve."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

_ANSWER_SECONDS = 10.0
"""Far beyond the longest blocking read (1 s): a server that froze or whose machine went away is noticed, then asked again."""


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """Where the buffer is and who we are there."""

    url: str
    user: str = ""
    password: str = ""


def open_buffer(settings: BufferSettings) -> Redis:
    """A client that reconnects by itself; every command used with it may be repeated without harm."""
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
    )
