"""A run's history of events. The gateway's event stream, its charts and trackers read it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf.message import DecodeError
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError
from pydantic_core import from_json

from gradbus.bus import subjects
from gradbus.bus.batch import Message
from gradbus.bus.connection import Bus
from gradbus.telemetry import WireOperation, get_logger
from gradbus.v1.event_pb2 import EventLevel, RunEvent

_log = get_logger(__name__)
_FLUSH_SECONDS = 0.2
_ATTEMPTS = 3
_MAX_WAITING = 10_000
_MAX_BYTES = 2 << 20
_CUT_CHARACTERS = 10_000
_STORE_SECONDS = 3.0
_SILENCE_SECONDS = 2.0
_STORE = WireOperation(
    "nats", {"messaging.system": "nats", "messaging.operation.type": "send", "messaging.destination.template": "events.*"}
)
Level = Literal["info", "warning", "error"]
_LEVELS: dict[Level, EventLevel] = {
    "info": EventLevel.EVENT_LEVEL_INFO,
    "warning": EventLevel.EVENT_LEVEL_WARNING,
    "error": EventLevel.EVENT_LEVEL_ERROR,
}
_NAMES: dict[int, Level] = {int(value): name for name, value in _LEVELS.items()}
_MAX_UNIX_NS = 4 * 10**18
"""In the year 2096: a later time is a corrupt one."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `sequence` grows within a run, with gaps."""

    sequence: int
    type: str
    level: Level
    message: str
    data: Mapping[str, Any]
    created_unix_ns: int


class EventLog:
    """Writes a run's events in the background, in order and in batches; reads from any sequence on."""

    def __init__(self, bus: Bus, run_id: str) -> None:
        self._bus = bus
        self._run_id = run_id
        self._waiting: list[tuple[str, bytes]] = []
        self._flushing = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None

    def emit(self, type_: str, message: str, data: Mapping[str, Any] | None = None, level: Level = "info", key: str = "") -> None:
        """Queues an event. With a `key`, it is stored once however often it is emitted; without, every call stores an event."""
        event = RunEvent(
            run_id=self._run_id,
            type=type_,
            level=_LEVELS[level],
            message=message,
            data_json=json.dumps(data or {}),
            created_unix_ns=time.time_ns(),
        )
        if event.ByteSize() > _MAX_BYTES:  # NATS would refuse it for ever, and with it every later event
            _log.warning("event_cut", run_id=self._run_id, type=type_, bytes=event.ByteSize())
            event.message, event.data_json = message[:_CUT_CHARACTERS], "{}"
        if len(self._waiting) >= _MAX_WAITING:
            _log.error("event_lost", run_id=self._run_id, type=type_, reason="NATS has not taken events for too long")
            return
        self._waiting.append((f"{self._run_id}:{key or secrets.token_hex(12)}", event.SerializeToString()))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush_later(), name="events")

    async def flush(self) -> None:
        """Waits until every queued event is stored. Raises an error of NATS."""
        subject = subjects.events(self._run_id)
        async with self._flushing:
            while self._waiting:
                batch = self._waiting[:256]
                with _STORE.measured(sum(len(payload) for _, payload in batch), len(batch)):
                    stored = [
                        await self._bus.jetstream.publish_async(subject, payload, wait_stall=5.0, headers={"Nats-Msg-Id": key})
                        for key, payload in batch
                    ]
                    async with asyncio.timeout(_STORE_SECONDS):
                        await asyncio.gather(*stored)
                del self._waiting[: len(batch)]

    def take(self) -> list[Message]:
        """The queued events, which the caller stores, together with those of other runs."""
        subject = subjects.events(self._run_id)
        taken = [Message(subject, payload, {"Nats-Msg-Id": key}) for key, payload in self._waiting]
        self._waiting.clear()
        return taken

    async def wait_until_stored(self) -> None:
        """Waits until every queued event is stored, also while NATS does not answer."""
        while self._waiting:
            try:
                await self.flush()
            except (NatsError, APIError, TimeoutError) as error:
                _log.info("events_not_stored_yet", run_id=self._run_id, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_FLUSH_SECONDS)

    async def _flush_later(self) -> None:
        while self._waiting:
            await asyncio.sleep(_FLUSH_SECONDS)
            await self.wait_until_stored()

    async def remove(self) -> None:
        """Removes every event of the run."""
        await self._bus.jetstream.purge_stream(subjects.EVENTS_STREAM, subject=subjects.events(self._run_id))

    async def read(self, after: int = 0, limit: int = 1000) -> list[Event]:
        """Up to `limit` events with a sequence above `after`, oldest first."""
        found: list[Event] = []
        async with aclosing(self.follow(after, until_current=True)) as events:
            async for event in events:
                found.append(event)
                if len(found) >= limit:
                    break
        return found

    async def follow(self, after: int = 0, until_current: bool = False) -> AsyncGenerator[Event, None]:
        """Events above `after` as they come, also across a restart of NATS; ends at the newest if `until_current`.

        Raises nats.errors.Error if the bus is closed, or if `until_current` and NATS does not answer for a while.
        """
        failures = 0
        while True:
            try:
                async with aclosing(self._read(after, until_current)) as events:
                    async for event in events:
                        after = event.sequence
                        yield event
                return
            except (NatsError, APIError) as error:
                failures += 1
                if self._bus.client.is_closed or (until_current and failures >= _ATTEMPTS):
                    raise
                _log.info("event_reading_interrupted", run_id=self._run_id, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)

    async def _read(self, after: int, until_current: bool) -> AsyncGenerator[Event, None]:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1, inactive_threshold=10.0)
        subscription = await self._bus.jetstream.subscribe(subjects.events(self._run_id), ordered_consumer=True, config=config)
        try:
            info = await subscription.consumer_info()
            left = info.num_pending + (info.delivered.consumer_seq if info.delivered else 0) if info.num_pending is not None else 0
            while not (until_current and left <= 0):
                try:
                    message = await subscription.next_msg(timeout=_SILENCE_SECONDS)
                except NatsTimeoutError:
                    info = await subscription.consumer_info()  # raises if the consumer is gone
                    left = min(left, (info.num_pending or 0) + subscription.pending_msgs)
                    continue
                # A full stream drops its oldest events while it is read, so fewer may come than were counted.
                left = min(left - 1, message.metadata.num_pending or 0)
                yield _event(message)
        finally:
            await self._remove(subscription)

    async def _remove(self, subscription: JetStreamContext.PushSubscription) -> None:
        """Removes the consumer at once: there are many short readers, and the server keeps unused consumers for a while."""
        with contextlib.suppress(NatsError, APIError, TimeoutError):
            info = await subscription.consumer_info()
            await subscription.unsubscribe()
            await self._bus.jetstream.delete_consumer(subjects.EVENTS_STREAM, info.name)


def _event(message: Msg) -> Event:
    """The event in a message; one of the type `unreadable` in place of a message that holds none."""
    sequence = message.metadata.sequence.stream
    try:
        event = RunEvent.FromString(message.data)
        data = from_json(event.data_json or "{}")
        if not isinstance(data, dict) or not 0 <= event.created_unix_ns < _MAX_UNIX_NS:
            raise ValueError("its data is not an object, or its time is out of range")
    except (DecodeError, ValueError) as error:
        _log.warning("event_unreadable", subject=message.subject, sequence=sequence, error=f"{type(error).__name__}: {error}")
        text = "this event cannot be read; the other events of the run are not affected"
        return Event(sequence, "unreadable", "warning", text, {}, int(message.metadata.timestamp.timestamp() * 1e9))
    return Event(sequence, event.type, _NAMES.get(event.level, "info"), event.message, data, event.created_unix_ns)
