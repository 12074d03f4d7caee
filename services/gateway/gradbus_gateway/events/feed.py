"""The events of one run as they come, for any number of followers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import islice
from typing import Final

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from gradbus.bus import Event, EventLog
from gradbus_gateway.events.pacer import Pacer
from gradbus_gateway.resources.runs import event_resource

_HEARTBEAT_SECONDS: Final = 15.0
_RECENT_BYTES: Final = 1 << 20
_BATCH_BYTES: Final = 1 << 15


class EventFeed:
    """Keeps a run's newest events, encoded as server-sent events. A follower that needs older ones reads them from the event log."""

    def __init__(self, log: EventLog, pacer: Pacer, turns: asyncio.Semaphore) -> None:
        """`turns` bounds how many followers read the log at a time."""
        self.followers = 0
        self._log = log
        self._pacer = pacer
        self._turns = turns
        self._recent: deque[tuple[int, bytes]] = deque()
        self._recent_bytes = 0
        self._start = 0
        """`_recent` has every event above this sequence."""
        self._newest = 0
        self._is_over = False
        self._has_begun = asyncio.Event()
        self._waiting: dict[asyncio.Future[None], int] = {}
        """Followers that have had all events, with the newest of then; those that have waited longest come first."""

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """Encoded events above the sequence `after` until the feed is over, and heartbeats."""
        await self._has_begun.wait()
        while True:
            found = self._since(after) if after >= self._start else await self._read_log(after)
            if found:
                after = found[-1][0]
                yield b"".join(encoded for _, encoded in found)
            elif after < self._start:
                after = self._start  # the events between have been deleted
            elif self._is_over:
                return
            elif not await self._wait():
                yield KEEPALIVE_COMMENT

    async def fill(self, after: int) -> None:
        """Reads the events above the sequence `after`, as its first follower gave it, until it is cancelled."""
        # A number that is no event of the run would hide events from later followers.
        if after and [event.sequence for event in await self._log.read(after - 1, 1)] == [after]:
            self._start = self._newest = after
        self._has_begun.set()
        async with aclosing(self._log.follow(self._newest)) as events:
            await self._add(events)

    async def finish(self) -> None:
        """Reads the events that are stored by now, and ends the feed."""
        async with aclosing(self._log.follow(self._newest, until_current=True)) as events:
            await self._add(events)
        self.end()

    def end(self) -> None:
        """Ends the feed: its followers get what it has and no more."""
        self._is_over = True
        self._has_begun.set()
        self._pacer.ask(self._wake)

    async def _add(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            encoded = _encoded(event)
            self._recent.append((event.sequence, encoded))
            self._recent_bytes += len(encoded)
            self._newest = event.sequence
            while self._recent_bytes > _RECENT_BYTES and len(self._recent) > 1:
                self._start, oldest = self._recent.popleft()
                self._recent_bytes -= len(oldest)
            self._pacer.ask(self._wake)

    async def _wait(self) -> bool:
        """Waits until there are more events, or the feed is over. Returns False when it is time for a heartbeat."""
        woken = asyncio.get_running_loop().create_future()
        self._waiting[woken] = self._newest
        try:
            async with asyncio.timeout(_HEARTBEAT_SECONDS):
                await woken
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(woken, None)
        return True

    def _wake(self, most: int) -> int:
        """Wakes up to `most` followers that lack events, and returns how many."""
        lacking = (woken for woken, newest in self._waiting.items() if newest < self._newest or self._is_over)
        group = list(islice(lacking, most))
        for woken in group:
            del self._waiting[woken]
            if not woken.done():
                woken.set_result(None)
        return len(group)

    def _since(self, after: int) -> list[tuple[int, bytes]]:
        """The next events of `_recent` above `after`: about `_BATCH_BYTES`, because every follower may hold so many."""
        if after >= self._newest:
            return []
        newer: list[tuple[int, bytes]] = []
        for item in reversed(self._recent):
            if item[0] <= after:
                break
            newer.append(item)
        newer.reverse()
        return _batch(newer)

    async def _read_log(self, after: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        size = 0
        async with self._turns, aclosing(self._log.follow(after, until_current=True)) as events:
            async for event in events:
                found.append((event.sequence, _encoded(event)))
                size += len(found[-1][1])
                if size > _BATCH_BYTES:
                    break
        return found


def _batch(events: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The first events, up to `_BATCH_BYTES`, and at least one."""
    size = 0
    for count, (_, encoded) in enumerate(events):
        size += len(encoded)
        if size > _BATCH_BYTES:
            return events[: max(1, count)]
    return events


def _encoded(event: Event) -> bytes:
    return format_sse_event(data_str=event_resource(event).model_dump_json(), event=event.type, id=str(event.sequence))
