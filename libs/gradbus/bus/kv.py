"""Key-value buckets with compare-and-set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from gradbus.aio.tasks import background
from gradbus.bus.batch import Message
from gradbus.bus.group_commit import GroupCommit
from gradbus.bus.subjects import MARKER_TTL_SECONDS
from gradbus.bus.view import BucketTraits, View
from gradbus.errors import GradbusError
from gradbus.telemetry import WireOperation

_READ = WireOperation("nats", {"messaging.system": "nats", "gradbus.operation": "kv_read"})
_WRITE = WireOperation("nats", {"messaging.system": "nats", "gradbus.operation": "kv_write"})
_WRONG_REVISION = {10071, 10164}
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"


class Conflict(GradbusError):  # noqa: N818 - control flow, not a fault
    """Another process wrote the key first; read it again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and its revision, which a compare-and-set names."""

    value: bytes
    revision: int


class Bucket:
    """One key-value bucket."""

    def __init__(self, store: KeyValue, commits: GroupCommit, name: str, traits: BucketTraits, reconnects: Callable[[], int]) -> None:
        """`reconnects`: how often the connection was lost."""
        self._store = store
        self._commits = commits
        self._jetstream = commits.jetstream
        self._name = name
        self._traits = traits
        self._reconnects = reconnects

    async def get(self, key: str) -> Entry | None:
        """The key's entry, or None."""
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
        """Writes a key without a comparison; returns the revision. For keys with one writer."""
        with _WRITE.measured(len(value)):
            return await self._store.put(key, value)

    async def create(self, key: str, value: bytes) -> int:
        """Writes a new key. Raises Conflict if it exists."""
        try:
            with _WRITE.measured(len(value)):
                return await self._store.create(key, value)
        except KeyWrongLastSequenceError:
            raise Conflict(f"key {key} exists; read it again") from None

    def creation(self, key: str, value: bytes) -> Message:
        """The write of a new key, for `Bus.publish_batch`, which is refused if the key exists or existed."""
        return Message(f"$KV.{self._name}.{key}", value, {_EXPECTED: "0"})

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Replaces the value of a key. Raises Conflict if `revision` is not its newest."""
        message = Message(f"$KV.{self._name}.{key}", value, {_EXPECTED: str(revision)})
        try:
            with _WRITE.measured(len(value)):
                return await self._commits.write(message)
        except APIError as error:
            if error.err_code not in _WRONG_REVISION:
                raise
            raise Conflict(f"key {key} changed; read it again") from None

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Removes a key; no error if there is none. Raises Conflict if `revision` is given and is not its newest."""
        try:
            await self._store.delete(key, last=revision)
        except APIError as error:
            if error.err_code not in _WRONG_REVISION:
                raise
            raise Conflict(f"key {key} changed; read it again") from None

    async def purge(self, key: str, revision: int | None = None) -> None:
        """Removes a key that is not used again: even its marker goes, after an hour. No error if there is none.

        Raises Conflict if `revision` is given and is not its newest.
        """
        headers = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
        if revision is not None:
            headers[_EXPECTED] = str(revision)
        try:
            with _WRITE.measured():
                await self._jetstream.publish(f"$KV.{self._name}.{key}", b"", headers=headers, msg_ttl=MARKER_TTL_SECONDS)
        except APIError as error:
            if error.err_code not in _WRONG_REVISION:
                raise
            raise Conflict(f"key {key} changed; read it again") from None

    async def put_for(self, key: str, value: bytes, seconds: float) -> None:
        """Writes a key that expires. A view does not notice that."""
        with _WRITE.measured(len(value)):
            await self._jetstream.publish(f"$KV.{self._name}.{key}", value, msg_ttl=seconds)

    async def created(self) -> datetime:
        """When the bucket was made."""
        info = await self._jetstream.stream_info(f"KV_{self._name}")
        assert info.created is not None  # noqa: S101 - the server always sends it
        return info.created

    def snapshot(self, pattern: str = ">") -> View:
        """A copy of the keys that match `pattern`, as of its last `read`."""
        return View(self._jetstream, self._name, pattern, self._traits, self._reconnects)

    @asynccontextmanager
    async def view(self, pattern: str = ">") -> AsyncIterator[View]:
        """A live copy of the keys that match `pattern`, filled before the block is entered."""
        view = self.snapshot(pattern)
        async with background(view.follow(), f"view {pattern}"):
            await view.filled.wait()
            yield view
