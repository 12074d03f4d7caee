"""Manifests in object storage. A path is written once; the trainer publishes a corrupt manifest again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gradbus.errors import CorruptRecordError, ManifestError, ObjectMissingError
from gradbus.experience.records import seal, unseal
from gradbus.ids import digest_of, is_digest
from gradbus.objects import ObjectStore
from gradbus.run_files.paths import checkpoint_path, checkpoints_path, version_path, versions_path
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
        self.changes: Counter[str] = Counter()
        """Writes and deletions of this process, by run."""

    async def write_version(self, manifest: WeightManifest) -> None:
        """Stores a version's manifest without a sync: a version is provisional until a checkpoint covers it."""
        path = version_path(manifest)
        with self._changing(manifest.run_id):
            await self.objects.put(path, seal(manifest.SerializeToString()))
        self._versions[path] = manifest

    async def versions(self, run_id: str) -> dict[str, WeightManifest]:
        """Path to manifest of every version of the run."""
        paths = await self.objects.list(versions_path(run_id))
        found = await asyncio.gather(*map(self._version, paths))
        return {path: manifest for path, manifest in zip(paths, found, strict=True) if manifest is not None}

    async def write_checkpoint(self, manifest: CheckpointManifest) -> str:
        """Stores a checkpoint's manifest durably, at its path and as a blob, whose digest is returned."""
        payload = checkpoint_payload(manifest)
        digest = await self.objects.put_blob(payload)
        await self.objects.make_durable([digest])
        with self._changing(manifest.run_id):
            await self.objects.put(checkpoint_path(manifest), seal(payload), durable=True)
        return digest

    async def checkpoints(self, run_id: str) -> dict[str, CheckpointManifest]:
        """Path to manifest of every checkpoint of the run, committed or not."""
        paths = await self.objects.list(checkpoints_path(run_id))
        payloads = await asyncio.gather(*map(self._read, paths))
        return {path: CheckpointManifest.FromString(payload) for path, payload in zip(paths, payloads, strict=True) if payload is not None}

    async def checkpoint(self, digest: str) -> CheckpointManifest:
        """The manifest that a checkpoint head names. Raises CorruptRecordError, also when it is missing: then storage is damaged."""
        try:
            return CheckpointManifest.FromString(await self.objects.get_blob(digest))
        except ObjectMissingError as error:
            raise CorruptRecordError(f"the manifest of a checkpoint head is lost: {error}; restore object storage from a copy") from None

    async def kept_checkpoint(self, digest: str) -> CheckpointManifest | None:
        """The manifest of a committed checkpoint; None if retention has deleted it."""
        try:
            return CheckpointManifest.FromString(await self.objects.get_blob(digest))
        except ObjectMissingError:
            return None

    async def paths(self, run_id: str) -> list[str]:
        """Paths of all manifests of the run."""
        return [*await self.objects.list(versions_path(run_id)), *await self.objects.list(checkpoints_path(run_id))]

    async def blobs(self, path: str) -> frozenset[str]:
        """Digests of the blobs that the manifest at `path` needs. Cached, since a manifest never changes."""
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
        with self._changing(run_of(path)):
            await self.objects.delete(path)

    @contextmanager
    def _changing(self, run_id: str) -> Iterator[None]:
        """Counts a change at its end: who has read the manifests meanwhile may have missed it."""
        try:
            yield
        finally:
            self.changes[run_id] += 1

    async def _version(self, path: str) -> WeightManifest | None:
        """Cached, since a manifest never changes. None if it is torn or gone."""
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
                # Torn by a power cut: the trainer publishes it again. Or deleted since it was listed: nothing needs it.
                _log.warning("manifest_skipped", path=path, error=str(error))
                return None


def run_of(path: str) -> str:
    """The run whose manifest is at `path`."""
    return path.split("/")[1]


def checkpoint_payload(manifest: CheckpointManifest) -> bytes:
    """The bytes of which a checkpoint's digest is computed; maps are in order of their keys."""
    return manifest.SerializeToString(deterministic=True)


def named_versions(manifest: CheckpointManifest) -> Iterator[WeightManifest]:
    """The checkpoint's own version, and the versions that a resume samples with again."""
    yield manifest.weights
    yield from manifest.pinned


def named_shards(manifest: CheckpointManifest) -> Iterator[Shard]:
    """Every shard that must outlive a power cut with the checkpoint."""
    yield from manifest.optimizer
    for version in named_versions(manifest):
        yield from version.shards


def needed_blobs(shard: Shard) -> frozenset[str]:
    """Digests of the blobs from which the shard is made: its own, or its chain's base and the deltas."""
    if not shard.delta_only:
        return frozenset({shard.digest})
    return frozenset({shard.chain[0].base_digest, *(delta.digest for delta in shard.chain)})


def named_blobs(shards: Iterable[Shard]) -> frozenset[str]:
    """Digests of the blobs that shards need or can use: a reader that has a base of a whole shard fetches only the deltas."""
    found = [needed_blobs(shard) | {delta.digest for delta in shard.chain} for shard in shards]
    return frozenset().union(*found)


def version_blobs(manifest: WeightManifest) -> frozenset[str]:
    """Digests of the blobs that a version names. The manifest holds the whole chain, so no other manifest has to be kept for it."""
    return named_blobs(manifest.shards)


def checkpoint_blobs(manifest: CheckpointManifest) -> frozenset[str]:
    """Digests of the blobs that a checkpoint names, its manifest among them."""
    return named_blobs(named_shards(manifest)) | {digest_of(checkpoint_payload(manifest))}


def check_version(manifest: WeightManifest) -> None:
    """Raises ManifestError if the manifest lacks what a loader needs."""
    if manifest.step < 0 or not manifest.shards or not is_digest(manifest.digest):
        raise ManifestError("a version needs a step from 0 on, a digest `sha256:<hex>` and at least one shard; fill them in")
    for shard in manifest.shards:
        _check_chain(shard)


def _check_chain(shard: Shard) -> None:
    if shard.delta_only and not shard.chain:
        raise ManifestError(f"shard {shard.digest} is stored only as deltas and names none; name its chain, or store it whole")
    named = [shard.digest, *(digest for delta in shard.chain for digest in (delta.base_digest, delta.digest))]
    if not all(map(is_digest, named)):
        raise ManifestError("a shard and its chain are named by digests `sha256:<hex>`; fix the manifest")


def check_checkpoint(manifest: CheckpointManifest) -> None:
    """Raises ManifestError if the manifest is not one that a run can resume from."""
    versions = [manifest.weights, *manifest.pinned]
    for version in versions:
        check_version(version)
    if any(version.run_id != manifest.run_id for version in versions) or manifest.weights.step != manifest.step:
        raise ManifestError("a checkpoint's versions must be of its own run, and its weights of its own step; fix the manifest")
    if any(shard.delta_only for shard in (*manifest.weights.shards, *manifest.optimizer)):
        raise ManifestError("a checkpoint's own version must be stored whole, for resume and export; store it whole and commit again")
