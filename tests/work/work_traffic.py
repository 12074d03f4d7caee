"""Counts what services ask of the servers and of the disk: messages, commands of the buffer, calls, bytes and syncs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from nats.aio.client import Client
from redis.asyncio import Redis

from gradbus.objects import ObjectStore

_BY_THE_CLOCK: Final = ("$KV.leases", "$KV.workers")
_OWN_COMMANDS: Final = {"info", "hello", "client|setinfo", "client|setname"}
KINDS: Final = ("messages", "commands", "calls", "objects", "syncs")


def kind(counts: Counter[str], name: str) -> Counter[str]:
    """The counts of one of `KINDS`, or of `bytes`."""
    return Counter({place: count for place, count in counts.items() if place.startswith(name)})


@asynccontextmanager
async def counted_traffic(buffer: Redis) -> AsyncIterator[Counter[str]]:
    """Counts the messages and syncs of this process and the buffer's commands inside the block; heartbeats and leases are left out."""
    counts: Counter[str] = Counter()
    publish, fsync = Client.publish, os.fsync

    async def counted_publish(client: Client, subject: str, payload: bytes = b"", *given: Any, **named: Any) -> None:
        if not subject.startswith(_BY_THE_CLOCK):
            counts[f"messages {_pattern(subject)}"] += 1
        await publish(client, subject, payload, *given, **named)

    def counted_fsync(descriptor: int) -> None:
        counts["syncs of files"] += 1
        fsync(descriptor)

    before = await _commands(buffer)
    with mock.patch.object(Client, "publish", counted_publish), mock.patch.object(os, "fsync", counted_fsync):
        yield counts
    after = await _commands(buffer)
    after.subtract(before)
    counts.update({f"commands {name}": count for name, count in after.items() if count})


class CountedStub:
    """A stub whose calls are counted."""

    def __init__(self, stub: Any, counts: Counter[str]) -> None:
        self._stub = stub
        self._counts = counts

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._stub, name)

        def counted(*given: Any, **named: Any) -> Any:
            self._counts[f"calls {name}"] += 1
            return call(*given, **named)

        return counted


class CountedObjects(ObjectStore):
    """An object store whose writes are counted, and their bytes."""

    def __init__(self, store: ObjectStore, counts: Counter[str]) -> None:
        super().__init__(store._backend, store.url, store._root)
        self._counts = counts

    async def put_blob(self, data: bytes | memoryview) -> str:
        """See `ObjectStore`."""
        self._count("blobs", len(data))
        return await super().put_blob(data)

    async def put_file(self, path: Path) -> str:
        """See `ObjectStore`."""
        digest = await super().put_file(path)
        self._count("files", await self.blob_size(digest) or 0)
        return digest

    def _count(self, what: str, size: int) -> None:
        self._counts[f"objects {what}"] += 1
        self._counts[f"bytes of {what}"] += size


async def _commands(buffer: Redis) -> Counter[str]:
    found = await buffer.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in found.items()}
    return Counter({name: count for name, count in calls.items() if name not in _OWN_COMMANDS})


def _pattern(subject: str) -> str:
    """The subject without what differs from run to run."""
    parts = subject.split(".")
    return ".".join(parts[:4] if parts[:2] == ["$JS", "API"] else parts[:2] if parts[0] == "$KV" else parts[:1])
