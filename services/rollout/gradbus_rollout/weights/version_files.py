"""The way of a version's shards to this machine: faster ways in front, object storage behind them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gradbus.aio.tasks import gathered
from gradbus.errors import DiskError, GradbusError
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger, transport_failed
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_rollout.weights.cache import KEPT, ShardCache
from gradbus_rollout.weights.downloader import ShardDownloader

_log = get_logger(__name__)
_KEPT_ON_A_FULL_DISK = (1, 0)
"""First all but the newest shard goes, which a delta may start from."""


class Way(Protocol):
    """Another way than object storage for the shards of a version."""

    @property
    def name(self) -> str:
        """What logs and metrics call it."""
        ...

    async def bring(self, manifest: WeightManifest, cache: ShardCache) -> None:
        """Puts what it can of the version's shards into the cache, which checks their digests.

        Ends by a deadline of its own. Raises GradbusError or OSError when it fails: the next way is taken.
        """
        ...


class VersionFiles:
    """Shards as files. What fails in front falls back to object storage, which fails only if the version is gone (R8)."""

    def __init__(self, objects: ObjectStore, folder: Path, ways: Sequence[Way] = ()) -> None:
        self._cache = ShardCache(folder)
        self._stored = ShardDownloader(objects, self._cache)
        self._ways = ways

    async def files(self, manifest: WeightManifest) -> list[Path]:
        """The version's files, in the order of its shards.

        Raises ObjectMissingError when there is no way to one of them, CorruptRecordError, StorageError and DiskError.
        """
        for way in self._ways:
            if all(self._stored.find(shard.digest) for shard in manifest.shards):
                break
            try:
                await way.bring(manifest, self._cache)
            except (GradbusError, OSError) as error:
                transport_failed(way.name)
                _log.warning("transport_failed", way=way.name, version=manifest.step, error=str(error))
        for kept in _KEPT_ON_A_FULL_DISK:
            try:
                return await self._brought(manifest)
            except DiskError as error:
                _log.warning("shards_evicted", kept=kept, error=str(error))
                self._cache.evict(kept)
        return await self._brought(manifest)

    async def _brought(self, manifest: WeightManifest) -> list[Path]:
        return await gathered([self._stored.bring(shard) for shard in manifest.shards])

    def loaded(self, files: Sequence[Path]) -> None:
        """Frees what is older than these, which are in the engine."""
        self._cache.evict(max(KEPT, len(files)))

    def forget(self) -> None:
        """Empties the cache: something in it is not what it was."""
        self._cache.evict(0)
