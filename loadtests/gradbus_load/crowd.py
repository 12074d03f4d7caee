"""A crowd around one gateway, in a process of its own: followers of a run, and sockets that send a byte a second or read nothing.

`python -m gradbus_load.crowd`, with a `Crowd` as JSON on its input. It prints a line when all are connected, and what they saw when its
input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime

_SLOW_SECONDS = 1.0
_LISTENERS_EVERY = 50
"""One follower in so many reads what it receives; the others only count, so that the crowd does not take the gateway's processor."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Whom to connect to, and how many connect."""

    host: str
    port: int
    events: str
    """Path of the event stream that all follow."""
    keys: list[str]
    """They take turns."""
    followers: int
    slow: int


@dataclass(slots=True)
class Seen:
    """What the crowd saw."""

    refused: int = 0
    """Followers that got another response than an event stream."""
    lost: int = 0
    """Followers whose stream ended."""
    received_bytes: int = 0
    ages: list[float] = field(default_factory=list)
    """Seconds from an event to its arrival."""
    reconnected: int = 0
    """Times that the gateway closed a slow socket, which connected again."""


class _Follower(asyncio.Protocol):
    def __init__(self, head: bytes, seen: Seen, listens: bool) -> None:
        self._head = head
        self._seen = seen
        self._listens = listens
        self._is_first = True
        self.answered = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for the stream."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        """Counts, and measures the age of the newest event."""
        if self._is_first:
            self._is_first = False
            self._seen.refused += b" 200 " not in data[:20]
            self.answered.set()
            return
        self._seen.received_bytes += len(data)
        marker = b'"created_at":"'
        if self._listens and (at := data.rfind(marker)) >= 0:
            created, _, rest = data[at + len(marker) :].partition(b'"')
            if rest:
                self._seen.ages.append(time.time() - datetime.fromisoformat(created.decode()).timestamp())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it
        """Counts."""
        self._seen.lost += 1
        self.answered.set()


async def _follow(crowd: Crowd, seen: Seen, number: int) -> None:
    key = crowd.keys[number % len(crowd.keys)]
    head = f"GET {crowd.events} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nAccept: text/event-stream\r\n\r\n"
    loop = asyncio.get_running_loop()
    _, follower = await loop.create_connection(
        lambda: _Follower(head.encode(), seen, number % _LISTENERS_EVERY == 0), crowd.host, crowd.port
    )
    await follower.answered.wait()


async def _dawdle(crowd: Crowd, seen: Seen, number: int) -> None:
    """A slow client of one of three kinds; it connects again as often as it is closed."""
    key = crowd.keys[number % len(crowd.keys)]
    begin, rest = (
        (b"GET /v1/runs HTTP/1.1\r\nX-Slow: ", b"x"),
        (f"POST /v1/files HTTP/1.1\r\nAuthorization: Bearer {key}\r\nContent-Length: 1000000\r\n\r\n".encode(), b"x"),
        (f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode() * 8, b""),
    )[number % 3]
    while True:
        try:
            _, writer = await asyncio.open_connection(crowd.host, crowd.port, limit=1024)
            writer.write(begin)
            while not writer.transport.is_closing():
                await asyncio.sleep(_SLOW_SECONDS)
                writer.write(rest)
                await writer.drain()
        except OSError:
            await asyncio.sleep(_SLOW_SECONDS)
        seen.reconnected += 1


async def main() -> None:
    """Connects everybody, then waits for the end of the input."""
    crowd = Crowd(**json.loads(sys.stdin.readline()))
    seen = Seen()
    for first in range(0, crowd.followers, 100):
        await asyncio.gather(*(_follow(crowd, seen, number) for number in range(first, min(first + 100, crowd.followers))))
    slow = [asyncio.create_task(_dawdle(crowd, seen, number)) for number in range(crowd.slow)]
    await asyncio.sleep(_SLOW_SECONDS)
    print("connected", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in slow:
        task.cancel()
    print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
