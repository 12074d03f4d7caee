"""The connection of a process to NATS. It makes missing streams and buckets; any process may do so first."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, PersistMode, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, BucketNotFoundError, ServerError
from nats.js.kv import KeyValue

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus import subjects
from gradbus.bus.batch import Message, publish_batch
from gradbus.bus.group_commit import GroupCommit
from gradbus.bus.kv import Bucket
from gradbus.bus.view import BucketTraits
from gradbus.errors import SettingsError
from gradbus.telemetry import WireOperation, get_logger
from gradbus.tls import Identity

_log = get_logger(__name__)
_TTL_SECONDS = {
    subjects.Buckets.WORKERS: subjects.WORKER_TTL_SECONDS,
    subjects.Buckets.LEASES: subjects.LEASE_TTL_SECONDS,
    subjects.Buckets.SESSIONS: subjects.SESSION_TTL_SECONDS,
}
_MARKED = {subjects.Buckets.WORKERS}
"""Buckets whose keys leave a marker when they expire: a view need not read a thousand heartbeats again to see that one is missing."""
_DUPLICATE_SECONDS = 120.0
_TASK_AGE_SECONDS = 600.0
_EVENT_BYTES = 1 << 30
_MOST_CONSUMERS = 1_000_000
"""Of a stream. NATS has 1,000 if it is not told, and each worker follows a key in three buckets."""
_NATS_GIB = 3
"""Free disk space that NATS needs: it counts a stream twice while one is asked for again."""
_NO_ROOM = {10023, 10047}
_FLUSH_SECONDS = 3


@dataclass(frozen=True, slots=True)
class BusSettings:
    """Address of NATS, and the user."""

    url: str
    user: str = ""
    password: str = ""
    replicas: int = 1
    """Servers that have each stream and bucket. With several, reads of keys go to the leader, and the task queue is written synchronously,
    as replication needs."""
    identity: Identity | None = None
    """Shown to a server whose address begins with `tls:`."""


class Bus:
    """A connection that reconnects without limit. A core message may be lost: each is only a hint."""

    def __init__(self, client: Client, settings: BusSettings) -> None:
        self.client = client
        self.jetstream: JetStreamContext = client.jetstream(timeout=5.0)
        self._settings = settings
        self._buckets: dict[str, Bucket] = {}

    @classmethod
    async def connect(cls, settings: BusSettings, name: str, wait_seconds: float = 30.0) -> Bus:
        """Connects, and makes missing streams.

        Raises SettingsError when NATS does not answer within `wait_seconds`.
        """
        bus = cls(Client(), settings)
        opening = asyncio.create_task(bus._open(name), name="connect to NATS")
        try:
            await asyncio.wait({opening}, timeout=wait_seconds)
        finally:
            await cancel_and_wait(opening)
            if opening.cancelled() or opening.exception() is not None:
                await bus.client.close()
        if not opening.cancelled():
            with contextlib.suppress(TimeoutError):
                opening.result()
                return bus
        reason = f" ({bus.client.last_error})" if bus.client.last_error else ""
        url = _without_credentials(settings.url)
        raise SettingsError(f"NATS at {url} did not answer in {wait_seconds:.0f} s{reason}; start it, or set GRADBUS_NATS_URL")

    async def bucket(self, name: str) -> Bucket:
        """The key-value bucket, which is made if it is missing. Waits while NATS does not answer."""
        while name not in self._buckets:
            try:
                store = await self._store(name)
                traits = BucketTraits(name in _TTL_SECONDS and name not in _MARKED, _is_synced(name, self._settings.replicas))
                self._buckets[name] = Bucket(store, GroupCommit(self.client, self.jetstream), name, traits, self._reconnects)
            except TimeoutError:
                _log.info("nats_unreachable", waiting_for=f"bucket {name}")
        return self._buckets[name]

    async def _store(self, name: str) -> KeyValue:
        try:
            return await self.jetstream.key_value(name)
        except BucketNotFoundError:
            with contextlib.suppress(BadRequestError):  # another release made it at this moment, with another configuration
                await self.jetstream.add_stream(_bucket_config(name, self._settings.replicas))
            return await self.jetstream.key_value(name)

    def _reconnects(self) -> int:
        return self.client.stats["reconnects"]

    async def publish(self, subject: str, payload: bytes) -> None:
        """Sends a core message, which arrives at most once. It is a hint, and part of no trace."""
        with _operation("send", subjects.template(subject)).measured(len(payload)):
            await self.client.publish(subject, payload)

    async def publish_batch(self, messages: Sequence[Message]) -> None:
        """Stores messages of one stream by one synced write, all of them or none. Raises APIError if the server refuses one of them."""
        with _operation("send", subjects.template(messages[0].subject)).measured(sum(len(one.payload) for one in messages), len(messages)):
            await publish_batch(self.client, messages)

    @asynccontextmanager
    async def subscribed(self, subject: str, handler: Callable[[bytes], Awaitable[None]]) -> AsyncIterator[None]:
        """Calls `handler` with every core message on `subject` inside the block."""
        operation = _operation("process", subjects.template(subject))

        async def deliver(message: Msg) -> None:
            with operation.measured(len(message.data)):
                await handler(message.data)

        subscription = await self.client.subscribe(subject, cb=deliver)
        try:
            yield
        finally:
            if not self.client.is_closed:
                await subscription.unsubscribe()

    async def close(self) -> None:
        """Flushes the messages to be sent and closes. It does not drain: subscriptions are over, so nothing would read the rest."""
        if not self.client.is_closed:
            with contextlib.suppress(NatsError, TimeoutError):
                await self.client.flush(_FLUSH_SECONDS)
            await self.client.close()

    async def _open(self, name: str) -> None:
        settings = self._settings
        tls = settings.identity.client_context() if settings.identity and settings.url.startswith("tls:") else None
        while True:
            try:
                await self.client.connect(
                    settings.url,
                    user=settings.user or None,
                    password=settings.password or None,
                    name=name,
                    tls=tls,
                    # Otherwise the client would ask the server, in plain text, whether it wants TLS.
                    tls_handshake_first=tls is not None,
                    inbox_prefix=subjects.inbox(settings.user),
                    connect_timeout=2,
                    reconnect_time_wait=0.1,  # type: ignore[arg-type] # a float works, the hint says int,
                    max_reconnect_attempts=-1,
                    ping_interval=10,
                    error_cb=_report,
                )
                break
            except (OSError, NatsError, TimeoutError) as error:
                _log.info("nats_unreachable", url=_without_credentials(settings.url), error=str(error))
                await asyncio.sleep(0.2)
        await self._make_streams()

    async def _make_streams(self) -> None:
        queue = StreamConfig(
            name=subjects.PROMPTS_STREAM,
            subjects=["prompts.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            max_msgs_per_subject=100_000,
            max_consumers=_MOST_CONSUMERS,
            max_age=_TASK_AGE_SECONDS,
            # The conductor dispatches lost tasks again, so the queue need not be synced.
            persist_mode=PersistMode.ASYNC if self._settings.replicas == 1 else None,
            num_replicas=self._settings.replicas,
        )
        history = StreamConfig(
            name=subjects.EVENTS_STREAM,
            subjects=["events.*"],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_bytes=_EVENT_BYTES,
            max_consumers=_MOST_CONSUMERS,
            duplicate_window=3600.0,
            allow_atomic=True,
            num_replicas=self._settings.replicas,
        )
        for config in (queue, history):
            try:
                await self.jetstream.add_stream(config)
            except BadRequestError as error:
                # Another release made the stream with another configuration; keep it for its content.
                _log.warning("stream_kept_as_is", stream=config.name, error=str(error))
            except ServerError as error:
                if error.err_code not in _NO_ROOM:
                    raise
                raise SettingsError(
                    f"NATS has no room for the stream {config.name} ({error.description}): it uses at most three quarters of the space "
                    f"that was free on its volume when it started; free {_NATS_GIB} GiB there and start it again"
                ) from None


def _without_credentials(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)


def _bucket_config(name: str, replicas: int) -> StreamConfig:
    """The stream of a key-value bucket as every client makes it, and also open to batches, which the client library cannot ask for."""
    ttl = _TTL_SECONDS.get(name)
    is_synced = _is_synced(name, replicas)
    return StreamConfig(
        name=f"KV_{name}",
        subjects=[f"$KV.{name}.>"],
        max_msgs_per_subject=1,
        max_consumers=_MOST_CONSUMERS,
        max_age=ttl,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        duplicate_window=min(ttl or _DUPLICATE_SECONDS, _DUPLICATE_SECONDS),
        deny_delete=True,
        allow_rollup_hdrs=True,
        # Direct reads cost a third. Of several replicas one that is behind may answer them.
        allow_direct=replicas == 1,
        num_replicas=replicas,
        allow_msg_ttl=True,
        allow_atomic=is_synced,
        persist_mode=None if is_synced else PersistMode.ASYNC,
        subject_delete_marker_ttl=subjects.MARKER_TTL_SECONDS if name in _MARKED else None,
    )


def _is_synced(name: str, replicas: int) -> bool:
    """Not heartbeats, which come again in a second: a thousand workers would sync a thousand times a second. Replication needs it."""
    return name != subjects.Buckets.WORKERS or replicas > 1


@cache
def _operation(kind: str, template: str) -> WireOperation:
    names = {"messaging.system": "nats", "messaging.operation.type": kind, "messaging.destination.template": template}
    return WireOperation("nats", names)


async def _report(error: Exception) -> None:
    _log.info("nats_connection", error=f"{type(error).__name__}: {error}")
