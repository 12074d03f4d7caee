"""Shards from object storage: whole, or by deltas from a shard in the cache. No torch, which a worker beside a server does not have."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from gradbus.aio.tasks import gather_or_cancel
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
"""Bytes of one request; a larger shard is read in parts, several at a time."""
_Route = tuple[str, Callable[[], Awaitable[Path]]]
_FAULTS = (CorruptRecordError, DeltaError, FileNotFoundError, ObjectMissingError)


class ShardDownloader:
    """Needs only the version's manifest, so a worker that joins late catches up from object storage alone."""

    def __init__(self, objects: ObjectStore, cache: ShardCache) -> None:
        self._objects = objects
        self._cache = cache
        self._requests = asyncio.Semaphore(_PARALLEL)

    def find(self, digest: str) -> Path | None:
        """The shard's file if it is on this machine: in the cache, or in object storage when that is a local folder."""
        if (cached := self._cache.find(digest)) is not None:
            return cached
        own = self._objects.local_path(digest)
        return own if own is not None and own.exists() else None

    async def fetch(self, shard: Shard) -> Path:
        """The shard's file, by the cheapest route that works.

        Raises ObjectMissingError when no route works, CorruptRecordError when the stored bytes are damaged, StorageError when object
        storage is away, and DiskError when the cache has no room.
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
        cached = next((at for at in reversed(range(len(shard.chain))) if self.find(shard.chain[at].base_digest)), None)
        if cached is not None and (shard.delta_only or sum(delta.size_bytes for delta in shard.chain[cached:]) < shard.size_bytes):
            yield "delta", lambda: self._from_cached(shard, shard.chain[cached:])
        if shard.delta_only:
            yield "anchor", lambda: self._from_anchor(shard)
        else:
            yield "store", lambda: self._download(shard.digest, shard.size_bytes)

    async def _from_cached(self, shard: Shard, chain: Sequence[ShardDelta]) -> Path:
        base = chain[0].base_digest
        deltas = await self._deltas(chain)
        path = self.find(base)
        if path is None:
            raise ObjectMissingError(f"the shard {base} was evicted before its delta came; it is fetched whole")
        try:
            return await self._cache.keep(shard.digest, await asyncio.to_thread(lambda: _applied(_mapped(path), deltas)))
        except (CorruptRecordError, DeltaError):
            self._cache.discard(base)  # its file may be damaged, and would fail every later delta
            raise

    async def _from_anchor(self, shard: Shard) -> Path:
        await self._download(shard.chain[0].base_digest, shard.size_bytes)  # a delta keeps the size of the file
        return await self._from_cached(shard, shard.chain)

    async def _download(self, digest: str, size: int) -> Path:
        """Downloads a blob; a large one is never whole in memory."""
        if size <= PART_BYTES:
            return await self._at_once(digest, size)
        try:
            return await self._in_parts(digest, size)
        except StorageError as error:  # some S3 servers answer range requests wrongly
            _log.warning("range_requests_failed", shard=digest, error=str(error))
            return await self._at_once(digest, size)

    async def _at_once(self, digest: str, size: int) -> Path:
        content = await self._blob(digest)
        weights_moved("store", "fetched", size)
        return await self._cache.keep(digest, content)

    async def _in_parts(self, digest: str, size: int) -> Path:
        with self._cache.partial_file(digest) as partial:
            partial.touch()

            async def read(begin: int) -> None:
                async with self._requests:
                    part = await self._objects.get_blob_part(digest, begin, min(begin + PART_BYTES, size))
                    await asyncio.to_thread(_write_at, partial, begin, part)

            await gather_or_cancel([read(begin) for begin in range(0, size, PART_BYTES)])
            weights_moved("store", "fetched", size)
            return await asyncio.to_thread(self._cache.adopt, digest, partial)

    async def _blob(self, digest: str) -> bytes:
        async with self._requests:
            return await self._objects.get_blob(digest)

    async def _deltas(self, chain: Sequence[ShardDelta]) -> list[bytes]:
        found = await gather_or_cancel([self._blob(delta.digest) for delta in chain])
        weights_moved("delta", "fetched", sum(map(len, found)))
        return found


def _applied(base: memoryview, deltas: Sequence[bytes]) -> memoryview:
    """Applies the deltas to `base`, one after the other."""
    for delta in deltas:
        new = _memory(len(base))
        apply_file_delta(memoryview(delta), base, new)
        base = new
    return base


def _memory(size: int) -> memoryview:
    """In large pages where the system has them: the faults of small ones take longer than the delta."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _write_at(file: Path, begin: int, part: bytes) -> None:
    """Writes all of `part` or raises OSError. Opens the file anew, because this may still run after its caller was cancelled."""
    with file.open("r+b") as stream:
        stream.seek(begin)
        stream.write(part)


def _mapped(path: Path) -> memoryview:
    if not path.stat().st_size:
        raise DeltaError(f"{path} is empty; its shard is fetched again")  # a power cut may leave it so
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
