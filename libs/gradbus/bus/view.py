"""Live copies of key-value buckets that repair themselves when a watch breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, DeliverPolicy

from gradbus.errors import GradbusError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)

RESYNC_SECONDS = 2.0
"""A watch may end without an error (a lost connection, a bucket that was made again): every view reads again this often."""
_SMALL_KEYS: Final = 64
"""A view of fewer keys is read as a whole each time; of a larger view only changes are read, and everything this often:"""
_FULL_READ_SECONDS: Final = 60.0
_RESYNC_SHARE: Final = 0.05
"""Share of a view's time that may be spent on reading again: a large bucket is read less often."""
_MAX_RESYNC_SECONDS: Final = 10.0
"""The longest pause, however long reading took: a slow server may be in trouble, and a view must not stay old then."""
_FILL_SECONDS: Final = 2.0
_INACTIVE_SECONDS: Final = 4.0
_OPERATION: Final = "KV-Operation"
_MARKER: Final = "Nats-Marker-Reason"


class _WatchInterrupted(GradbusError):  # noqa: N818 - control flow, not a fault
    """The watch missed a change; read everything again."""


@dataclass(frozen=True, slots=True)
class _Change:
    key: str
    value: bytes | None
    """None for a removed key."""
    sequence: int
    """Position in the bucket's stream; it only grows."""


class View:
    """A copy of the keys that match a pattern. Level-triggered: wait for `changed`, read `entries`, count no changes."""

    def __init__(self, jetstream: JetStreamContext, bucket: str, pattern: str, *, expires: bool = False) -> None:
        """`expires`: keys of the bucket have a time to live; a watch does not report that they expire."""
        self._jetstream = jetstream
        self._bucket = bucket
        self._pattern = pattern
        self._expires = expires
        self._entries: dict[str, bytes] = {}
        self._newest = 0
        self._created: datetime | None = None
        self._full_read_at = 0.0
        self.changed = asyncio.Event()
        self.filled = asyncio.Event()

    @property
    def entries(self) -> Mapping[str, bytes]:
        """Key to value, as last seen."""
        return self._entries

    def get(self, key: str) -> bytes | None:
        """The value of `key`, as last seen."""
        return self._entries.get(key)

    async def read(self) -> None:
        """Reads the bucket once, for a view without `follow`. Raises GradbusError when the server stops answering."""
        after = await self._unchanged_up_to()
        async with _watching(self._jetstream, self._bucket, self._pattern, after) as watch:
            await self._fill(watch, after)

    async def follow(self) -> None:
        """Watches until cancelled, and reads the bucket again from time to time."""
        while True:
            try:
                await self._follow_once()
            except Exception as error:  # noqa: BLE001 - without its task a view would stay old for ever, so it reads again after any error
                _log.info("watch_interrupted", pattern=self._pattern, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)

    async def _follow_once(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        after = await self._unchanged_up_to()
        async with _watching(self._jetstream, self._bucket, self._pattern, after) as watch:
            await self._fill(watch, after)
            pause = min((clock() - began) / _RESYNC_SHARE, _MAX_RESYNC_SECONDS)
            deadline = clock() + max(RESYNC_SECONDS, pause)
            while (left := deadline - clock()) > 0 and (change := await watch.next(left)):
                _apply(change, self._entries)
                self._newest = change.sequence
                self.changed.set()

    async def _unchanged_up_to(self) -> int:
        """Sequence after which to read changes; 0 to read everything."""
        if self._expires or len(self._entries) < _SMALL_KEYS:
            return 0
        info = await self._jetstream.stream_info(f"KV_{self._bucket}")
        is_known = info.created == self._created and info.state.last_seq >= self._newest
        self._created = info.created
        is_due = asyncio.get_running_loop().time() - self._full_read_at > _FULL_READ_SECONDS
        return self._newest if is_known and not is_due else 0

    async def _fill(self, watch: _Watch, after: int) -> None:
        changes = await watch.backlog()
        fresh = dict(self._entries) if after else {}
        for change in changes:
            _apply(change, fresh)
            self._newest = change.sequence
        if not after:
            self._full_read_at = asyncio.get_running_loop().time()
        if fresh != self._entries:
            self._entries = fresh
            self.changed.set()
        self.filled.set()


class _Watch:
    """The messages of an ordered consumer, checked for gaps."""

    def __init__(self, subscription: JetStreamContext.PushSubscription, prefix: str) -> None:
        self._subscription = subscription
        self._prefix = prefix
        self._received = 0
        self._pending = 0

    async def backlog(self) -> list[_Change]:
        """All changes up to now. Raises _WatchInterrupted when the messages stop."""
        # The answer may overtake messages: count delivered ones too, not only pending ones.
        info: ConsumerInfo = await self._subscription.consumer_info()
        expected = (info.num_pending or 0) + (info.delivered.consumer_seq if info.delivered else 0)
        changes: list[_Change] = []
        # A key that is written meanwhile loses its old message, so fewer may come: then none is pending.
        while self._received < expected and not (self._received and self._pending == 0):
            change = await self.next(_FILL_SECONDS)
            if change is None:
                raise _WatchInterrupted(f"{self._received} of {expected} keys arrived")
            changes.append(change)
        return changes

    async def next(self, seconds: float) -> _Change | None:
        """The next change, or None after `seconds`. Raises _WatchInterrupted when a change before it is missing."""
        try:
            message = await self._subscription.next_msg(timeout=seconds)
        except TimeoutError:
            return None
        self._received += 1
        if message.metadata.sequence.consumer != self._received:
            raise _WatchInterrupted(f"change {self._received} is missing")
        self._pending = message.metadata.num_pending or 0
        value = None if _is_removal(message) else message.data
        return _Change(message.subject.removeprefix(self._prefix), value, message.metadata.sequence.stream)


@asynccontextmanager
async def _watching(jetstream: JetStreamContext, bucket: str, pattern: str, after: int) -> AsyncIterator[_Watch]:
    prefix = f"$KV.{bucket}."
    if after:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1)
    else:
        config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT)
    subscription = await jetstream.subscribe(
        prefix + pattern,
        stream=f"KV_{bucket}",
        ordered_consumer=True,
        config=config,
        inactive_threshold=_INACTIVE_SECONDS,
    )
    try:
        yield _Watch(subscription, prefix)
    finally:
        await subscription.unsubscribe()


def _apply(change: _Change, entries: dict[str, bytes]) -> None:
    if change.value is None:
        entries.pop(change.key, None)
    else:
        entries[change.key] = change.value


def _is_removal(message: Msg) -> bool:
    """Whether the key was deleted or purged, or expired."""
    headers = message.headers or {}
    return headers.get(_OPERATION) in {"DEL", "PURGE"} or _MARKER in headers
