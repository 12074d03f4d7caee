"""Live copies of key-value buckets that repair themselves when a watch breaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from gradbus.errors import GradbusError
from gradbus.telemetry import get_logger

_log = get_logger(__name__)

RESYNC_SECONDS = 2.0
"""A view reads again so soon after a lost connection; and so often, if keys expire of which the server tells nobody."""
CHECK_SECONDS = 10.0
"""A watch may end without an error (a bucket that was made again, a server of several that is gone): every view asks this often.

It asks whether the server still sends, and what: to read again each time would make a consumer on the server, and a thousand workers
have three views each.
"""
_SMALL_KEYS: Final = 64
"""A view of fewer keys is read as a whole each time; of a larger view only changes are read. Everything is read this often:"""
_FULL_READ_SECONDS: Final = 600.0
_FULL_READ_SHARE: Final = 0.01
"""Share of a view's time that may be spent on reading everything: a bucket that takes longer is read as a whole less often."""
_RESYNC_SHARE: Final = 0.05
"""Share of a view's time that may be spent on reading again: a large bucket is read less often."""
_MAX_RESYNC_SECONDS: Final = 10.0
"""The longest pause, however long reading took: a slow server may be in trouble, and a view must not stay old then."""
_FILL_SECONDS: Final = 2.0
_CATCH_UP_SECONDS: Final = 5.0
_INACTIVE_SECONDS: Final = 4.0
_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 10.0
"""After a watch that broke. Each time the server does not answer the pause doubles: thousands of views that ask a busy server again at
once for all that they hold would keep it busy. A connection that was lost and is back ends the pause."""
_BATCH: Final = 256
"""Changes that are applied before other tasks have their turn."""
_WILDCARDS: Final = frozenset("*>")
_OPERATION: Final = "KV-Operation"
_MARKER: Final = "Nats-Marker-Reason"


class _WatchInterrupted(GradbusError):  # noqa: N818 - control flow, not a fault
    """The watch missed a change; read everything again."""


@dataclass(frozen=True, slots=True)
class BucketTraits:
    """What a view has to know of its bucket."""

    expires_silently: bool = False
    """Keys expire without a marker, so a watch does not report it."""
    is_synced: bool = True
    """What the server has acknowledged outlives its kill; else it may give the same sequences to other writes afterwards."""


@dataclass(frozen=True, slots=True)
class _Change:
    key: str
    value: bytes | None
    """None for a removed key."""
    sequence: int
    """Position in the bucket's stream; it only grows."""


class View:
    """A copy of the keys that match a pattern. Level-triggered: wait for `changed`, read `entries`, count no changes.

    An index of many keys listens instead: its work then follows the number of changes, not the number of keys.
    """

    def __init__(
        self,
        jetstream: JetStreamContext,
        bucket: str,
        pattern: str,
        traits: BucketTraits = BucketTraits(),
        reconnects: Callable[[], int] = lambda: 0,
    ) -> None:
        """`reconnects`: how often the connection was lost."""
        self._traits = traits
        self._reconnects = reconnects
        self._jetstream = jetstream
        self._bucket = bucket
        self._pattern = pattern
        self._entries: dict[str, bytes] = {}
        self._newest = 0
        self._created: datetime | None = None
        self._full_read_due = 0.0
        self._unanswered = 0
        """Attempts in a row that the server did not answer."""
        self._read_after = -1
        """Lost connections before everything was read."""
        self._advanced = asyncio.Event()
        self._listeners: list[Callable[[str], None]] = []
        self.changed = asyncio.Event()
        self.filled = asyncio.Event()

    @property
    def entries(self) -> Mapping[str, bytes]:
        """Key to value, as last seen."""
        return self._entries

    def get(self, key: str) -> bytes | None:
        """The value of `key`, as last seen."""
        return self._entries.get(key)

    def listen(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with every key that the view holds, and then with each key that changes. It must not raise."""
        self._listeners.append(listener)
        for key in tuple(self._entries):
            listener(key)

    async def catch_up(self) -> None:
        """Returns once the view shows every write that NATS stored before the call. Raises an error of NATS, or TimeoutError."""
        try:
            newest = await self._jetstream.get_last_msg(f"KV_{self._bucket}", f"$KV.{self._bucket}.{self._pattern}")
        except NotFoundError:
            return
        async with asyncio.timeout(_CATCH_UP_SECONDS):
            while self._newest < (newest.seq or 0):
                await self._advanced.wait()

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
                self._unanswered = self._unanswered + 1 if isinstance(error, TimeoutError) else 0
                await self._pause()

    async def _pause(self) -> None:
        clock, reconnects = asyncio.get_running_loop().time, self._reconnects()
        over = clock() + _pause_of(self._unanswered) * random.uniform(0.5, 1.0)  # views that stopped together do not ask together
        while (left := over - clock()) > 0 and reconnects == self._reconnects():  # noqa: ASYNC110 - a connection sets no event
            await asyncio.sleep(min(left, _PAUSE_SECONDS))

    async def _follow_once(self) -> None:
        clock = asyncio.get_running_loop().time
        began, reconnects = clock(), self._reconnects()
        after = await self._unchanged_up_to()
        async with _watching(self._jetstream, self._bucket, self._pattern, after) as watch:
            await self._fill(watch, after)
            if self._traits.expires_silently:
                pause = min((clock() - began) / _RESYNC_SHARE, _MAX_RESYNC_SECONDS)
                await self._apply_until(watch, clock() + max(RESYNC_SECONDS, pause))
                return
            checked = clock()
            while reconnects == self._reconnects() and clock() < self._full_read_due:
                await self._apply_until(watch, clock() + RESYNC_SECONDS)
                if clock() - checked >= CHECK_SECONDS:
                    await watch.check()
                    checked = clock()

    async def _apply_until(self, watch: _Watch, deadline: float) -> None:
        clock = asyncio.get_running_loop().time
        while (left := deadline - clock()) > 0 and (changes := await watch.next(left)):
            self._apply(changes)

    async def _unchanged_up_to(self) -> int:
        """Sequence after which to read changes; 0 to read everything."""
        if self._traits.expires_silently or len(self._entries) < _SMALL_KEYS:
            return 0
        if not self._traits.is_synced and self._reconnects() != self._read_after:
            return 0
        info = await self._jetstream.stream_info(f"KV_{self._bucket}")
        is_known = info.created == self._created and info.state.last_seq >= self._newest
        self._created = info.created
        is_due = asyncio.get_running_loop().time() > self._full_read_due
        return self._newest if is_known and not is_due else 0

    async def _fill(self, watch: _Watch, after: int) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        reconnects = self._reconnects()
        changes = await watch.backlog()
        if not after:
            self._read_after = reconnects
            self._full_read_due = clock() + max(_FULL_READ_SECONDS, (clock() - began) / _FULL_READ_SHARE)
            found = {change.key for change in changes}
            gone = [_Change(key, None, self._newest) for key in self._entries if key not in found]
            changes = gone + changes
        self._unanswered = 0
        for first in range(0, len(changes), _BATCH):
            self._apply(changes[first : first + _BATCH])
            await asyncio.sleep(0)
        self.filled.set()

    def _apply(self, changes: Sequence[_Change]) -> None:
        for change in changes:
            self._newest = change.sequence
            if self._entries.get(change.key) == change.value:
                continue
            if change.value is None:
                del self._entries[change.key]
            else:
                self._entries[change.key] = change.value
            self.changed.set()
            for listener in self._listeners:
                listener(change.key)
        self._advanced.set()
        self._advanced = asyncio.Event()


def _pause_of(unanswered: int) -> float:
    """Seconds, at most, after so many attempts in a row without an answer."""
    return min(_PAUSE_SECONDS * 2.0**unanswered, _LONGEST_PAUSE_SECONDS)


class _Watch:
    """The messages of an ordered consumer, checked for gaps."""

    def __init__(self, prefix: str) -> None:
        self.subscription: JetStreamContext.PushSubscription  # once the server knows it
        self._prefix = prefix
        self._messages: deque[Msg] = deque()
        self._arrived = asyncio.Event()
        self._received = 0
        self._pending = 0
        self.expected = 0
        """Messages that the server had for the consumer when it was asked."""
        self._sent = 0
        """Messages that the server had sent at the last check."""

    async def check(self) -> None:
        """Asks what the server has sent. Raises _WatchInterrupted when that did not arrive, and an error of NATS when it sends no more."""
        info: ConsumerInfo = await self.subscription.consumer_info()
        sent = info.delivered.consumer_seq if info.delivered else 0
        is_lost = self._received + len(self._messages) < self._sent
        is_stalled = bool(info.num_pending) and sent == self._sent
        if is_lost or is_stalled or sent < self._received:  # the client made another consumer, which counts anew
            raise _WatchInterrupted(f"the server sent {sent} changes, {self._received} arrived")
        self._sent = sent

    async def take(self, message: Msg) -> None:
        """Takes a message from the connection; waiting for each of many messages would be most of the work."""
        self._messages.append(message)
        self._arrived.set()

    async def backlog(self) -> list[_Change]:
        """All changes up to now. Raises _WatchInterrupted when the messages stop."""
        changes: list[_Change] = []
        # A key that is written meanwhile loses its old message, so fewer may come: then none is pending.
        while self._received < self.expected and not (self._received and self._pending == 0):
            found = await self.next(_FILL_SECONDS)
            if not found:
                raise _WatchInterrupted(f"{self._received} of {self.expected} keys arrived")
            changes += found
        return changes

    async def next(self, seconds: float) -> list[_Change]:
        """The next changes, as soon as there is one; none after `seconds`. Raises _WatchInterrupted when one before them is missing."""
        if self._messages:
            await asyncio.sleep(0)  # many changes must not keep other tasks waiting
        else:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
        return [self._change(self._messages.popleft()) for _ in range(min(_BATCH, len(self._messages)))]

    def _change(self, message: Msg) -> _Change:
        self._received += 1
        metadata = message.metadata
        if metadata.sequence.consumer != self._received:
            raise _WatchInterrupted(f"change {self._received} is missing")
        self._pending = metadata.num_pending or 0
        value = None if _is_removal(message) else message.data
        return _Change(message.subject.removeprefix(self._prefix), value, metadata.sequence.stream)


@asynccontextmanager
async def _watching(jetstream: JetStreamContext, bucket: str, pattern: str, after: int) -> AsyncIterator[_Watch]:
    prefix = f"$KV.{bucket}."
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, num_replicas=1)
    if after:
        config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, after + 1
    else:
        config.deliver_policy = DeliverPolicy.LAST_PER_SUBJECT
    watch = _Watch(prefix)
    watch.subscription = subscription = await jetstream.subscribe(
        prefix + pattern,
        stream=f"KV_{bucket}",
        cb=watch.take,
        # With flow control, for which the client looks four times a second. A single key needs none: workers follow three of them.
        ordered_consumer=not _WILDCARDS.isdisjoint(pattern),
        manual_ack=True,
        config=config,
        inactive_threshold=_INACTIVE_SECONDS,
    )
    try:
        # The answer may overtake messages: count delivered ones too, not only pending ones.
        info: ConsumerInfo = await subscription.consumer_info()
        watch.expected = (info.num_pending or 0) + (info.delivered.consumer_seq if info.delivered else 0)
        yield watch
    finally:
        with contextlib.suppress(NatsError):  # on a lost connection; raised, it would take the place of a cancellation
            await subscription.unsubscribe()


def _is_removal(message: Msg) -> bool:
    """Whether the key was deleted or purged, or expired."""
    headers = message.headers or {}
    return headers.get(_OPERATION) in {"DEL", "PURGE"} or _MARKER in headers
