"""A version's shards as files on this machine: from the cache, or from object storage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradbus.aio.tasks import gather_or_cancel
from gradbus.errors import DiskError
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_rollout.weights.cache import KEPT, ShardCache
from gradbus_rollout.weights.downloader import ShardDownloader

_log = get_logger(__name__)
_KEPT_ON_A_FULL_DISK = (1, 0)
"""Shards kept when the disk is full: first the newest, from which a delta may start; then none."""


class VersionFiles:
    """Finds the files of a version. A broadcast may have filled the cache already; object storage has whatever is missing (R8)."""

    def __init__(self, objects: ObjectStore, folder: Path) -> None:
        """`folder` is the cache of shards, which the workers of a machine may share."""
        self._cache = ShardCache(folder)
        self._downloader = ShardDownloader(objects, self._cache)

    async def files(self, manifest: WeightManifest) -> list[Path]:
        """The version's files, in the order of its shards.

        Raises ObjectMissingError when object storage does not hold what a shard is made from, CorruptRecordError, StorageError and
        DiskError.
        """
        for kept in _KEPT_ON_A_FULL_DISK:
            try:
                return await self._fetched(manifest)
            except DiskError as error:
                _log.warning("shards_evicted", kept=kept, error=str(error))
                self._cache.evict(kept)
        return await self._fetched(manifest)

    async def _fetched(self, manifest: WeightManifest) -> list[Path]:
        return await gather_or_cancel([self._downloader.fetch(shard) for shard in manifest.shards])

    def loaded(self, files: Sequence[Path]) -> None:
        """The engine has loaded these files: evicts the oldest shards beyond the bound."""
        for file in files:
            self._cache.touch(file)
        self._cache.evict(max(KEPT, len(files)))

    def evict_all(self) -> None:
        """Empties the cache, after one of its files turned out to have changed."""
        self._cache.evict(0)
