"""Manifests in object storage. A path is written once; what does not match its digest is made again by the trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from gradbus.errors import CorruptRecordError, ObjectMissingError
from gradbus.experience.records import seal, unseal
from gradbus.ids import digest_of
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import CheckpointManifest, Shard, WeightManifest

_log = get_logger(__name__)
_PARALLEL = 16


class Manifests:
    """`runs/<run>/versions/<step>-<term>` and `runs/<run>/checkpoints/<step>-<term>`."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects
        self._versions: dict[str, WeightManifest] = {}
        self._blobs: dict[str, frozenset[str]] = {}
        self._turns = asyncio.Semaphore(_PARALLEL)

    async def write_version(self, manifest: WeightManifest) -> None:
        """Stores a version's manifest; not synced, for a version is provisional until a checkpoint covers it."""
        path = version_path(manifest)
        await self.objects.put(path, seal(manifest.SerializeToString()))
        self._versions[path] = manifest

    async def versions(self, run_id: str) -> dict[str, WeightManifest]:
        """Path to manifest of every version of the run."""
        paths = await self.objects.list(f"runs/{run_id}/versions")
        found = await asyncio.gather(*map(self._version, paths))
        return {path: manifest for path, manifest in zip(paths, found, strict=True) if manifest is not None}

    async def write_checkpoint(self, manifest: CheckpointManifest) -> str:
        """Stores a checkpoint's manifest durably, at its path and as a blob, whose digest is returned."""
        payload = checkpoint_payload(manifest)
        digest = await self.objects.put_blob(payload)
        await self.objects.make_durable([digest])
        await self.objects.put(checkpoint_path(manifest), seal(payload), durable=True)
        return digest

    async def checkpoints(self, run_id: str) -> dict[str, CheckpointManifest]:
        """Path to manifest of every checkpoint of the run, committed or not."""
        paths = await self.objects.list(f"runs/{run_id}/checkpoints")
        payloads = await asyncio.gather(*map(self._read, paths))
        return {path: CheckpointManifest.FromString(payload) for path, payload in zip(paths, payloads, strict=True) if payload is not None}

    async def checkpoint(self, digest: str) -> CheckpointManifest:
        """The manifest behind a checkpoint head. Raises CorruptRecordError, also when it is gone: a head without it is damage."""
        try:
            return CheckpointManifest.FromString(await self.objects.get_blob(digest))
        except ObjectMissingError as error:
            raise CorruptRecordError(f"a checkpoint head names what is lost: {error}; restore object storage from a copy") from None

    async def paths(self, run_id: str) -> list[str]:
        """Paths of all manifests of the run."""
        return [*await self.objects.list(f"runs/{run_id}/versions"), *await self.objects.list(f"runs/{run_id}/checkpoints")]

    async def blobs(self, path: str) -> frozenset[str]:
        """Digests of the blobs that the manifest at `path` needs. Read once, for a manifest never changes."""
        if "/versions/" in path:
            version = await self._version(path)
            return version_blobs(version) if version else frozenset()
        if path not in self._blobs:
            payload = await self._read(path)
            if payload is None:
                return frozenset()
            self._blobs[path] = checkpoint_blobs(CheckpointManifest.FromString(payload))
        return self._blobs[path]

    async def delete(self, path: str) -> None:
        """Removes a manifest."""
        self._versions.pop(path, None)
        self._blobs.pop(path, None)
        await self.objects.delete(path)

    async def _version(self, path: str) -> WeightManifest | None:
        """Read once, for a manifest never changes; None if it is torn or gone."""
        if path not in self._versions:
            payload = await self._read(path)
            if payload is None:
                return None
            self._versions[path] = WeightManifest.FromString(payload)
        return self._versions[path]

    async def _read(self, path: str) -> bytes | None:
        async with self._turns:
            try:
                return unseal(await self.objects.get(path), path)
            except (CorruptRecordError, ObjectMissingError) as error:
                # Torn by a power cut, or deleted since it was listed: the trainer publishes it again, or nobody needs it.
                _log.warning("manifest_skipped", path=path, error=str(error))
                return None


def version_path(manifest: WeightManifest) -> str:
    """Where a version's manifest lies."""
    return f"runs/{manifest.run_id}/versions/{manifest.step}-{manifest.term}"


def checkpoint_path(manifest: CheckpointManifest) -> str:
    """Where a checkpoint's manifest lies."""
    return f"runs/{manifest.run_id}/checkpoints/{manifest.step}-{manifest.term}"


def checkpoint_payload(manifest: CheckpointManifest) -> bytes:
    """The bytes that a checkpoint's digest is over; maps are in order of their keys."""
    return manifest.SerializeToString(deterministic=True)


def named_versions(manifest: CheckpointManifest) -> Iterator[WeightManifest]:
    """The checkpoint's own version, and those a resume samples with again."""
    yield manifest.weights
    yield from manifest.pinned


def named_shards(manifest: CheckpointManifest) -> Iterator[Shard]:
    """Every shard that must outlive a power cut with the checkpoint."""
    yield from manifest.optimizer
    for version in named_versions(manifest):
        yield from version.shards


def needed_blobs(shard: Shard) -> frozenset[str]:
    """Digests of the blobs that give the shard: its own, or what its chain starts from and the deltas."""
    if not shard.delta_only:
        return frozenset({shard.digest})
    return frozenset({shard.chain[0].base_digest, *(delta.digest for delta in shard.chain)})


def named_blobs(shards: Iterable[Shard]) -> frozenset[str]:
    """Digests of the blobs that shards need or could use: a whole shard's deltas spare those who hold one of their bases the rest."""
    found = [needed_blobs(shard) | {delta.digest for delta in shard.chain} for shard in shards]
    return frozenset().union(*found)


def version_blobs(manifest: WeightManifest) -> frozenset[str]:
    """Digests of the blobs that a version names. Its chain stands in its manifest, so that no other manifest has to be kept for it."""
    return named_blobs(manifest.shards)


def checkpoint_blobs(manifest: CheckpointManifest) -> frozenset[str]:
    """Digests of the blobs that a checkpoint names, its manifest among them."""
    return named_blobs(named_shards(manifest)) | {digest_of(checkpoint_payload(manifest))}
