"""Key-value buckets with compare-and-set, and views of them that heal by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from gradbus.background import background
from gradbus.errors import GradbusError
from gradbus.telemetry import WireOperation, get_logger

_log = get_logger(__name__)

_READ = WireOperation("nats", {"messaging.system": "nats", "gradbus.operation": "kv_read"})
_WRITE = WireOperation("nats", {"messaging.system": "nats", "gradbus.operation": "kv_write"})
RESYNC_SECONDS = 2.0
"""Watches die quietly (a lost connection, a bucket made anew): every view reads all again this often."""
_FILL_SECONDS = 2.0
_FORGOTTEN_SECONDS = 4.0
_WRONG_REVISION = {10071, 10164}


class Conflict(GradbusError):  # noqa: N818 - a control-flow answer, not a fault
    """Somebody else wrote the key first; read it again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and the revision to name when replacing it."""

    value: bytes
    revision: int


class Bucket:
    """One bucket."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    async def get(self, key: str) -> Entry | None:
        """The entry, or None."""
        try:
            with _READ.measured() as reading:
                entry = await self._store.get(key)
                reading.payload_bytes = len(entry.value or b"")
        except KeyNotFoundError:
            return None
        if entry.value is None or entry.revision is None:
            return None
        return Entry(entry.value, entry.revision)

    async def put(self, key: str, value: bytes) -> int:
        """Writes without asking; returns the revision. For keys with one writer."""
        with _WRITE.measured(len(value)):
            return await self._store.put(key, value)

    async def create(self, key: str, value: bytes) -> int:
        """Writes a key that is not there. Raises Conflict if it is."""
        try:
            with _WRITE.measured(len(value)):
                return await self._store.create(key, value)
        except KeyWrongLastSequenceError:
            raise Conflict(f"key {key} exists; read it again") from None

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Replaces `revision` of a key. Raises Conflict if it is not the newest."""
        try:
            with _WRITE.measured(len(value)):
                return await self._store.update(key, value, last=revision)
        except KeyWrongLastSequenceError:
            raise Conflict(f"key {key} changed; read it again") from None

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Removes a key; no error if there is none. Raises Conflict if a `revision` is given that is not the newest."""
        try:
            await self._store.delete(key, last=revision)
        except APIError as error:
            if error.err_code not in _WRONG_REVISION:
                raise
            raise Conflict(f"key {key} changed; read it again") from None

    @asynccontextmanager
    async def view(self, pattern: str = ">") -> AsyncIterator[View]:
        """A live copy of the keys that match `pattern`, filled before the block is entered."""
        view = View(self._store, pattern)
        async with background(view.follow(), f"view {pattern}"):
            await view.filled.wait()
            yield view


class View:
    """What a watcher knows. Level-triggered: read `entries`, wait for `changed`, never count events."""

    def __init__(self, store: KeyValue, pattern: str) -> None:
        self._store = store
        self._pattern = pattern
        self._entries: dict[str, bytes] = {}
        self.changed = asyncio.Event()
        self.filled = asyncio.Event()

    @property
    def entries(self) -> Mapping[str, bytes]:
        """Key to value, as last seen."""
        return self._entries

    def get(self, key: str) -> bytes | None:
        """The value of `key`, as last seen."""
        return self._entries.get(key)

    async def follow(self) -> None:
        """Watches for ever; every `RESYNC_SECONDS` it starts again from what the bucket holds."""
        while True:
            try:
                await self._follow_once()
            except Exception as error:  # noqa: BLE001 - a view whose task died would be blind for ever: whatever it was, it reads again
                _log.info("watch_interrupted", pattern=self._pattern, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)

    async def _follow_once(self) -> None:
        watcher = await self._store.watch(self._pattern, inactive_threshold=_FORGOTTEN_SECONDS)
        fresh: dict[str, bytes] = {}
        initial = True
        clock = asyncio.get_running_loop().time
        deadline = 0.0
        try:
            # A large bucket takes its time: only a filled view is due to be read again.
            while (left := _FILL_SECONDS if initial else deadline - clock()) > 0:
                try:
                    entry = await watcher.updates(timeout=left)  # type: ignore[no-untyped-call]
                except TimeoutError:
                    break
                if entry is None:
                    if initial:
                        initial = False
                        deadline = clock() + RESYNC_SECONDS
                        self._replace(fresh)
                    continue
                target = fresh if initial else self._entries
                if entry.value is None or entry.operation in {"DEL", "PURGE"}:
                    target.pop(entry.key, None)
                else:
                    target[entry.key] = entry.value
                if not initial:
                    self.changed.set()
        finally:
            await watcher.stop()  # type: ignore[no-untyped-call]

    def _replace(self, fresh: dict[str, bytes]) -> None:
        if fresh != self._entries:
            self._entries = fresh
            self.changed.set()
        self.filled.set()
