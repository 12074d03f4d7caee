"""Which blobs any run names: in its spec or its status, or in the manifest of a version or checkpoint. Runs share blobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from collections.abc import Set as AbstractSet

from gradbus.bus import Bucket
from gradbus.ids import digests_in
from gradbus.objects import ObjectStore
from gradbus_weight_store.manifests import Manifests

_PARALLEL = 16
_RECORDS_SECONDS = 10.0


class NamedBlobs:
    """Reads what has changed since the last question: there may be thousands of runs."""

    def __init__(self, manifests: Manifests, runs: Bucket) -> None:
        self._manifests = manifests
        self._records = runs.snapshot("*.*")
        self._digests: dict[str, frozenset[str]] = {}
        """Key of the bucket to the digests in its value."""
        self._named: Counter[str] = Counter()
        self._records.listen(self._update)

    async def among(self, blobs: Collection[str], without: AbstractSet[str] = frozenset()) -> set[str]:
        """Those of `blobs` that are named. The manifests at the paths `without` do not count.

        Raises StorageError, errors of NATS, and TimeoutError if NATS is slow: publishing may wait for the answer.
        """
        in_manifests = await self._in_manifests(without)
        async with asyncio.timeout(_RECORDS_SECONDS):
            await self._records.read()
        return {digest for digest in blobs if digest in in_manifests or self._named[digest]}

    async def _in_manifests(self, without: AbstractSet[str]) -> set[str]:
        turns = asyncio.Semaphore(_PARALLEL)

        async def named(run_id: str) -> set[str]:
            # In parallel: object storage is slow for each of many runs, and publishing waits meanwhile.
            async with turns:
                paths = set(await self._manifests.paths(run_id)) - without
                return {digest for path in paths for digest in await self._manifests.blobs(path)}

        return set[str]().union(*await asyncio.gather(*map(named, await self._manifests.objects.folders("runs"))))

    def _update(self, key: str) -> None:
        self._named.subtract(self._digests.pop(key, ()))
        if value := self._records.get(key):
            self._digests[key] = digests_in(value)
            self._named.update(self._digests[key])


async def delete_blobs(objects: ObjectStore, blobs: Collection[str]) -> None:
    """Deletes blobs, several at a time."""
    turns = asyncio.Semaphore(_PARALLEL)

    async def delete(digest: str) -> None:
        async with turns:
            await objects.delete_blob(digest)

    await asyncio.gather(*map(delete, blobs))
