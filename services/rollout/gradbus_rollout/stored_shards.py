"""Shards from object storage: whole, or made by deltas from one that is here. No torch: an engine that is a server brings none."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from gradbus.errors import CorruptRecordError, ObjectMissingError
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger, way_failed, weights_moved
from gradbus.v1.weights_pb2 import Shard, ShardDelta
from gradbus_kernels.weights_delta_bytes import DeltaError
from gradbus_kernels.weights_delta_file import apply_file_delta
from gradbus_rollout.shard_cache import ShardCache

_log = get_logger(__name__)
_PARALLEL = 8
PART_BYTES = 1 << 25
"""Of one request; a larger shard is read by several at once."""
_Route = tuple[str, Callable[[], Awaitable[Path]]]
_FAULTS = (CorruptRecordError, DeltaError, FileNotFoundError, ObjectMissingError)


class StoredShards:
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

        Raises ObjectMissingError when none does, CorruptRecordError when what there is, is damaged, and StorageError when object
        storage is away.
        """
        if (path := self.find(shard.digest)) is not None:
            return path
        fault: Exception | None = None
        for name, take in self._routes(shard):
            try:
                return await take()
            except _FAULTS as error:
                fault = error
                way_failed(name)
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
            yield "store", lambda: self._whole(shard)

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
        """Files that differ by deltas are of one size."""
        content, deltas = await asyncio.gather(self._content(shard.chain[0].base_digest, shard.size_bytes), self._deltas(shard.chain))
        return await self._cache.keep(shard.digest, await asyncio.to_thread(_applied, memoryview(content), deltas))

    async def _whole(self, shard: Shard) -> Path:
        return await self._cache.keep(shard.digest, await self._content(shard.digest, shard.size_bytes))

    async def _content(self, digest: str, size: int) -> bytearray:
        """The blob, not checked: whoever keeps what comes of it checks that."""
        content = bytearray(size)

        async def read(begin: int) -> None:
            end = min(begin + PART_BYTES, size)
            async with self._turns:
                content[begin:end] = await self._objects.get_blob_part(digest, begin, end)

        await asyncio.gather(*(read(begin) for begin in range(0, size, PART_BYTES)))
        weights_moved("store", "fetched", size)
        return content

    async def _deltas(self, chain: Sequence[ShardDelta]) -> list[bytes]:
        async def read(delta: ShardDelta) -> bytes:
            async with self._turns:
                return await self._objects.get_blob(delta.digest)

        found = await asyncio.gather(*map(read, chain))
        weights_moved("delta", "fetched", sum(map(len, found)))
        return found


def _applied(base: memoryview, deltas: Sequence[bytes]) -> bytearray:
    """The file that the deltas lead to, one after the other."""
    for delta in deltas:
        new = bytearray(len(base))
        apply_file_delta(memoryview(delta), base, memoryview(new))
        base = memoryview(new)
    return new


def _mapped(path: Path) -> memoryview:
    if not path.stat().st_size:
        raise DeltaError(f"{path} is empty; its shard is brought again")  # what a power cut may leave
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
