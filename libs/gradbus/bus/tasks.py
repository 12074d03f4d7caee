"""The work queue of tasks. It may lose tasks: the conductor dispatches them again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError, NotFoundError

from gradbus.bus import subjects
from gradbus.bus.connection import Bus
from gradbus.telemetry import WireOperation, get_logger
from gradbus.v1.task_pb2 import Task

_log = get_logger(__name__)
_INACTIVE_SECONDS = 600.0
_FETCH_SECONDS = 2.0  # a fetch in flight while the server restarts is lost and waits for the whole time
_LEAST_SECONDS = 0.5
"""Of a fetch that brings nothing: a server that refuses it at once is asked again, but not all the time."""
_MOST_FETCHES = 100_000
"""That wait at a time. NATS has 512 if it is not told: a run may have more workers."""
_RECEIVE = WireOperation(
    "nats", {"messaging.system": "nats", "messaging.operation.type": "receive", "messaging.destination.template": "prompts.*"}
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A task and when it was received."""

    task: Task
    received: int = 0
    """Nanoseconds since 1970."""


class TaskQueue:
    """One run's tasks."""

    def __init__(self, bus: Bus, run_id: str) -> None:
        self._bus = bus
        self._subject = subjects.prompts(run_id)
        self._durable = f"rollout-{run_id}"
        self._subscription: JetStreamContext.PullSubscription | None = None

    async def publish(self, tasks: Sequence[Task]) -> None:
        """Puts tasks on the queue without waiting for acknowledgements. Each group of a task carries its own trace context."""
        for task in tasks:
            await self._bus.publish(self._subject, task.SerializeToString())

    async def fetch(self, limit: int) -> list[Delivery]:
        """Up to `limit` tasks, acknowledged at receipt; an empty list after two seconds without a task."""
        began = time.monotonic()
        try:
            if self._subscription is None:
                self._subscription = await self._subscribe()
            with _RECEIVE.measured() as received:
                messages = await self._subscription.fetch(limit, timeout=_FETCH_SECONDS)
                received.items, received.payload_bytes = len(messages), sum(len(message.data) for message in messages)
        except TimeoutError:
            pass  # the server's answer, or the client's own clock, if a busy machine looks at that first
        except (NatsError, APIError) as error:
            _log.info("fetch_interrupted", subject=self._subject, error=f"{type(error).__name__}: {error}")
            await self._drop()
        else:
            now = time.time_ns()
            for message in messages:
                await message.ack()
            return [Delivery(Task.FromString(message.data), now) for message in messages]
        await asyncio.sleep(began + _LEAST_SECONDS - time.monotonic())
        return []

    async def waiting(self) -> int:
        """Number of tasks that no worker has fetched."""
        try:
            return await self._pending()
        except APIError:
            return 0

    async def open(self) -> None:
        """Makes the run's consumer, if no other process has."""
        self._subscription = await self._subscribe()

    async def purge(self) -> None:
        """Removes every task of the run."""
        await self._bus.jetstream.purge_stream(subjects.PROMPTS_STREAM, subject=self._subject)

    async def remove(self) -> None:
        """Removes every task of the run, and the run's consumer."""
        await self.purge()
        try:
            await self._bus.jetstream.delete_consumer(subjects.PROMPTS_STREAM, self._durable)
        except APIError as error:
            _log.debug("consumer_not_removed", durable=self._durable, error=str(error))

    async def _pending(self) -> int:
        jetstream = self._bus.jetstream
        try:
            return (await jetstream.consumer_info(subjects.PROMPTS_STREAM, self._durable)).num_pending or 0
        except NotFoundError:  # the first worker makes the consumer, and may take minutes until it is ready for a task
            stored = await jetstream.stream_info(subjects.PROMPTS_STREAM, subjects_filter=self._subject)
            return (stored.state.subjects or {}).get(self._subject, 0)

    async def _drop(self) -> None:
        """Ends the subscription: the next fetch makes another one, and this one would be kept for ever."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()

    async def _subscribe(self) -> JetStreamContext.PullSubscription:
        # max_deliver 1: only the conductor dispatches again. A worker that fetches while its run ends makes the consumer again;
        # the server removes it after a while without use.
        config = ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=30.0,
            max_deliver=1,
            max_ack_pending=10_000,
            max_waiting=_MOST_FETCHES,
            inactive_threshold=_INACTIVE_SECONDS,
        )
        return await self._bus.jetstream.pull_subscribe(self._subject, durable=self._durable, stream=subjects.PROMPTS_STREAM, config=config)
