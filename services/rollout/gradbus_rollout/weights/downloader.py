"""Shards from object storage: whole, or made by deltas from one that is here. No torch: an engine that is a server brings none."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from gradbus.aio.tasks import gathered
from gradbus.errors import CorruptRecordError, ObjectMissingError, StorageError
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger, transport_failed, weights_moved
from gradbus.v1.weights_pb2 import Shard, ShardDelta
from gradbus_kernels.weights.delta.bytes import DeltaError
from gradbus_kernels.weights.delta.file import apply_file_delta
from gradbus_rollout.weights.cache import ShardCache

_log = get_logger(__name__)
_PARALLEL = 8
PART_BYTES = 1 << 25
"""Of one request; a larger shard is read by several at once."""
_Route = tuple[str, Callable[[], Awaitable[Path]]]
_FAULTS = (CorruptRecordError, DeltaError, FileNotFoundError, ObjectMissingError)


class ShardDownloader:
    """Needs nothing but a manifest, so that a worker which comes late catches up from the store alone."""

    def __init__(self, objects: ObjectStore, cache: ShardCache) -> None:
        self._objects = objects
        self._cache = cache
        self._turns = asyncio.Semaphore(_PARALLEL)

    def find(self, digest: str) -> Path | None:
        """The shard's file if it needs no bringing: the cache's, or the store's own when that is a folder."""
        if (cached := self._cache.find(digest)) is not None:
            return cached
        own = self._objects.local_path(digest)
        return own if own is not None and own.exists() else None

    async def bring(self, shard: Shard) -> Path:
        """The shard's file, by the cheapest route that works.

        Raises ObjectMissingError when none does, CorruptRecordError when what there is, is damaged, StorageError when object storage
        is away, and DiskError when the cache has no room.
        """
        if (path := self.find(shard.digest)) is not None:
            return path
        fault: Exception | None = None
        for name, take in self._routes(shard):
            try:
                return await take()
            except _FAULTS as error:
                fault = error
                transport_failed(name)
                _log.warning("shard_route_failed", shard=shard.digest, route=name, error=str(error))
        if isinstance(fault, CorruptRecordError | DeltaError):
            raise CorruptRecordError(f"the shard {shard.digest} is damaged in {self._objects.url}: {fault}") from None
        raise ObjectMissingError(f"nothing in {self._objects.url} gives the shard {shard.digest} ({fault}); ask for a newer version")

    def _routes(self, shard: Shard) -> Iterator[_Route]:
        held = next((at for at in reversed(range(len(shard.chain))) if self.find(shard.chain[at].base_digest)), None)
        if held is not None and (shard.delta_only or sum(delta.size_bytes for delta in shard.chain[held:]) < shard.size_bytes):
            yield "delta", lambda: self._from_held(shard, shard.chain[held:])
        if shard.delta_only:
            yield "anchor", lambda: self._from_anchor(shard)
        else:
            yield "store", lambda: self._fetched(shard.digest, shard.size_bytes)

    async def _from_held(self, shard: Shard, chain: Sequence[ShardDelta]) -> Path:
        base = chain[0].base_digest
        deltas = await self._deltas(chain)
        path = self.find(base)
        if path is None:
            raise ObjectMissingError(f"the shard {base} was evicted before its delta came; it is brought whole")
        try:
            return await self._cache.keep(shard.digest, await asyncio.to_thread(lambda: _applied(_mapped(path), deltas)))
        except (CorruptRecordError, DeltaError):
            self._cache.discard(base)  # it may have rotted, and would fail every delta to come
            raise

    async def _from_anchor(self, shard: Shard) -> Path:
        await self._fetched(shard.chain[0].base_digest, shard.size_bytes)  # files that differ by deltas are of one size
        return await self._from_held(shard, shard.chain)

    async def _fetched(self, digest: str, size: int) -> Path:
        """The blob's file, never whole in memory where it is large."""
        if size <= PART_BYTES:
            return await self._at_once(digest, size)
        try:
            return await self._in_parts(digest, size)
        except StorageError as error:  # there are S3 servers that answer ranges wrongly
            _log.warning("parts_refused", shard=digest, error=str(error))
            return await self._at_once(digest, size)

    async def _at_once(self, digest: str, size: int) -> Path:
        content = await self._blob(digest)
        weights_moved("store", "fetched", size)
        return await self._cache.keep(digest, content)

    async def _in_parts(self, digest: str, size: int) -> Path:
        with self._cache.draft(digest) as draft:
            draft.touch()

            async def read(begin: int) -> None:
                async with self._turns:
                    part = await self._objects.get_blob_part(digest, begin, min(begin + PART_BYTES, size))
                    await asyncio.to_thread(_write_at, draft, begin, part)

            await gathered([read(begin) for begin in range(0, size, PART_BYTES)])
            weights_moved("store", "fetched", size)
            return await asyncio.to_thread(self._cache.adopt, digest, draft)

    async def _blob(self, digest: str) -> bytes:
        async with self._turns:
            return await self._objects.get_blob(digest)

    async def _deltas(self, chain: Sequence[ShardDelta]) -> list[bytes]:
        found = await gathered([self._blob(delta.digest) for delta in chain])
        weights_moved("delta", "fetched", sum(map(len, found)))
        return found


def _applied(base: memoryview, deltas: Sequence[bytes]) -> bytearray:
    """The file that the deltas lead to, one after the other."""
    for delta in deltas:
        new = bytearray(len(base))
        apply_file_delta(memoryview(delta), base, memoryview(new))
        base = memoryview(new)
    return new


def _write_at(file: Path, begin: int, part: bytes) -> None:
    """All of it, or OSError. Opens the file for itself: this may still run when whoever asked for it was cancelled."""
    with file.open("r+b") as stream:
        stream.seek(begin)
        stream.write(part)


def _mapped(path: Path) -> memoryview:
    if not path.stat().st_size:
        raise DeltaError(f"{path} is empty; its shard is brought again")  # what a power cut may leave
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
