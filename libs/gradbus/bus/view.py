"""Live copies of key-value buckets that heal by themselves."""

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
"""Watches die quietly (a lost connection, a bucket made anew): every view reads again this often."""
_FEW: Final = 64
"""Keys that are read whole each time. Of more only what has changed is read, and all of them now and then."""
_WHOLE_SECONDS: Final = 60.0
_RESYNC_SHARE: Final = 0.05
"""Of a view's time that may go into that: a large bucket is read again more rarely."""
_MOST_RESYNC_SECONDS: Final = 10.0
"""However long it took: what is slow may be a server in trouble, and whoever looks then must not stay blind."""
_FILL_SECONDS: Final = 2.0
_FORGOTTEN_SECONDS: Final = 4.0
_OPERATION: Final = "KV-Operation"
_MARKER: Final = "Nats-Marker-Reason"


class _Interrupted(GradbusError):  # noqa: N818 - a control-flow answer, not a fault
    """The watch missed something; read all again."""


@dataclass(frozen=True, slots=True)
class _Change:
    key: str
    value: bytes | None
    """None for a key that is gone."""
    sequence: int
    """Place in the bucket's stream, which only grows."""


class View:
    """What a watcher knows. Level-triggered: read `entries`, wait for `changed`, never count events."""

    def __init__(self, jetstream: JetStreamContext, bucket: str, pattern: str, *, expires: bool = False) -> None:
        """`expires`: keys of the bucket run out, which no watch tells."""
        self._jetstream = jetstream
        self._bucket = bucket
        self._pattern = pattern
        self._expires = expires
        self._entries: dict[str, bytes] = {}
        self._newest = 0
        self._made: datetime | None = None
        self._whole_at = 0.0
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
        """Reads once what the bucket holds now, for a view that nobody follows. Raises GradbusError when it stops coming."""
        after = await self._unchanged_up_to()
        async with _watching(self._jetstream, self._bucket, self._pattern, after) as watch:
            await self._fill(watch, after)

    async def follow(self) -> None:
        """Watches for ever; now and then it starts again from what the bucket holds."""
        while True:
            try:
                await self._follow_once()
            except Exception as error:  # noqa: BLE001 - a view whose task died would be blind for ever: whatever it was, it reads again
                _log.info("watch_interrupted", pattern=self._pattern, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)

    async def _follow_once(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        after = await self._unchanged_up_to()
        async with _watching(self._jetstream, self._bucket, self._pattern, after) as watch:
            await self._fill(watch, after)
            pause = min((clock() - began) / _RESYNC_SHARE, _MOST_RESYNC_SECONDS)
            deadline = clock() + max(RESYNC_SECONDS, pause)
            while (left := deadline - clock()) > 0 and (change := await watch.next(left)):
                _apply(change, self._entries)
                self._newest = change.sequence
                self.changed.set()

    async def _unchanged_up_to(self) -> int:
        """The change behind which reading goes on; 0 where all is read again."""
        if self._expires or len(self._entries) < _FEW:
            return 0
        info = await self._jetstream.stream_info(f"KV_{self._bucket}")
        is_known = info.created == self._made and info.state.last_seq >= self._newest
        self._made = info.created
        is_due = asyncio.get_running_loop().time() - self._whole_at > _WHOLE_SECONDS
        return self._newest if is_known and not is_due else 0

    async def _fill(self, watch: _Watch, after: int) -> None:
        changes = await watch.backlog()
        fresh = dict(self._entries) if after else {}
        for change in changes:
            _apply(change, fresh)
            self._newest = change.sequence
        if not after:
            self._whole_at = asyncio.get_running_loop().time()
        if fresh != self._entries:
            self._entries = fresh
            self.changed.set()
        self.filled.set()


class _Watch:
    """An ordered consumer's messages, none of which may be missing."""

    def __init__(self, subscription: JetStreamContext.PushSubscription, prefix: str) -> None:
        self._subscription = subscription
        self._prefix = prefix
        self._received = 0
        self._pending = 0

    async def backlog(self) -> list[_Change]:
        """All that lay there when this was called, or newer. Raises _Interrupted when it stops coming."""
        # The answer may overtake messages that are on their way: what was delivered counts as well, not only what waits.
        info: ConsumerInfo = await self._subscription.consumer_info()
        expected = (info.num_pending or 0) + (info.delivered.consumer_seq if info.delivered else 0)
        changes: list[_Change] = []
        # A key that is written meanwhile leaves its old place, so that fewer may come: then nothing is left waiting.
        while self._received < expected and not (self._received and self._pending == 0):
            change = await self.next(_FILL_SECONDS)
            if change is None:
                raise _Interrupted(f"{self._received} of {expected} keys came")
            changes.append(change)
        return changes

    async def next(self, seconds: float) -> _Change | None:
        """The next change, or None after `seconds`. Raises _Interrupted when one before it is missing."""
        try:
            message = await self._subscription.next_msg(timeout=seconds)
        except TimeoutError:
            return None
        self._received += 1
        if message.metadata.sequence.consumer != self._received:
            raise _Interrupted(f"change {self._received} did not come")
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
        inactive_threshold=_FORGOTTEN_SECONDS,
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
    """A key that was deleted or purged, or that ran out."""
    headers = message.headers or {}
    return headers.get(_OPERATION) in {"DEL", "PURGE"} or _MARKER in headers
