"""The feeds of the runs that somebody follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.aio.tasks import background
from gradbus.bus import Bus, EventLog
from gradbus.telemetry import get_logger
from gradbus_gateway.events.feed import EventFeed
from gradbus_gateway.events.pacer import Pacer
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.runs.listing import RunList
from gradbus_gateway.runs.store import RunStore, UnreadableRun

_log = get_logger(__name__)
_LOOK_SECONDS: Final = 1.0
_READERS: Final = 4
"""Followers that read older events at a time."""


class EventFeeds:
    """Opens a run's feed for its first follower, and closes it after its last one."""

    def __init__(self, bus: Bus, runs: RunStore, run_list: RunList, stopping: asyncio.Event) -> None:
        """`stopping` is set when the process drains: every feed ends then, so that followers connect to another replica."""
        self._bus = bus
        self._runs = runs
        self._run_list = run_list
        self._stopping = stopping
        self._feeds: dict[str, EventFeed] = {}
        self._tending: dict[EventFeed, asyncio.Task[None]] = {}
        self._pacer = Pacer()
        self._turns = asyncio.Semaphore(_READERS)

    async def follow(self, run_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Encoded events above the sequence `after` until the run has ended, and heartbeats."""
        feed = self._feeds.get(run_id)
        if feed is None:
            feed = self._feeds[run_id] = EventFeed(EventLog(self._bus, run_id), self._pacer, self._turns)
            self._tending[feed] = asyncio.create_task(self._tend(run_id, feed, after), name=f"events of {run_id}")
        feed.followers += 1
        try:
            async with aclosing(feed.follow(after)) as events:
                async for batch in events:
                    yield batch
        finally:
            feed.followers -= 1
            if not feed.followers:
                self._close(run_id, feed)

    def _close(self, run_id: str, feed: EventFeed) -> None:
        """Later followers get a feed of their own."""
        if self._feeds.get(run_id) is feed:
            del self._feeds[run_id]
        if (task := self._tending.pop(feed, None)) is not None:
            task.cancel()

    async def _tend(self, run_id: str, feed: EventFeed, after: int) -> None:
        try:
            async with background(feed.fill(after), f"event reader of {run_id}") as reading:
                while not reading.done() and not self._stopping.is_set() and not await self._is_over(run_id):
                    await asyncio.wait({reading}, timeout=_LOOK_SECONDS)
            if not self._stopping.is_set():
                await feed.finish()
        except (NatsError, APIError, ProblemError, TimeoutError) as error:
            _log.warning("event_feed_ended", run_id=run_id, error=f"{type(error).__name__}: {error}")
        finally:
            if self._feeds.get(run_id) is feed:
                del self._feeds[run_id]
            feed.end()

    async def _is_over(self, run_id: str) -> bool:
        """Whether the run has ended. The live list tells at no cost; a run that it does not show, yet or any more, is read.

        Raises the problem 404.
        """
        run = self._run_list.find(run_id)
        try:
            run = run or await self._runs.get(run_id)
        except (NatsError, APIError, TimeoutError) as error:
            _log.info("run_state_unknown", run_id=run_id, error=f"{type(error).__name__}: {error}")
            return False  # NATS is away for a moment
        return isinstance(run, UnreadableRun) or run.is_final
