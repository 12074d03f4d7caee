"""One run: its term, its versions, its checkpoints. Memory holds a copy of the bucket `heads` and of object storage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from gradbus import crash_points
from gradbus.bus import Bucket, Conflict, OwnedKey
from gradbus.errors import FencedError, HistoryError, ObjectMissingError, StorageError, VersionGoneError
from gradbus.ids import digest_of
from gradbus.run_files.versions import remove_deleted, store_deleted
from gradbus.v1.weight_store_service_pb2 import Heads
from gradbus.v1.weights_pb2 import CheckpointHead, CheckpointManifest, Shard, WeightManifest
from gradbus_weight_store.delete_lock import StoreDeleteLock
from gradbus_weight_store.holders import Holders
from gradbus_weight_store.manifests import Manifests, checkpoint_payload, named_shards, named_versions, needed_blobs

_ATTEMPTS = 5
_LAST_TERM = 2**53 - 1
"""Above every term that a lease can have."""
_FENCED_SECONDS = 86_400.0
_PARALLEL = 16
Result = TypeVar("Result")


class Ledger:
    """Moves a run's heads. Opening a term fences every older one."""

    def __init__(self, run_id: str, heads: Bucket, manifests: Manifests, delete_lock: StoreDeleteLock) -> None:
        self.run_id = run_id
        self._heads = heads
        self._manifests = manifests
        self._delete_lock = delete_lock
        self._lock = asyncio.Lock()
        self._term = OwnedKey(heads, f"{run_id}.term")
        self._version = OwnedKey(heads, f"{run_id}.version")
        self._checkpoint = OwnedKey(heads, f"{run_id}.checkpoint")
        self._loaded = False
        self._versions: dict[int, list[WeightManifest]] = {}
        self.holders = Holders(heads, run_id)

    @property
    def version_head(self) -> WeightManifest | None:
        """The newest version, as last seen, without the names of its tensors."""
        return WeightManifest.FromString(self._version.value) if self._version.value else None

    @property
    def checkpoint_head(self) -> CheckpointHead | None:
        """The newest durable checkpoint, as last seen."""
        return CheckpointHead.FromString(self._checkpoint.value) if self._checkpoint.value else None

    async def open_term(self, term: int) -> None:
        """Fences every term below `term`. Raises FencedError if a newer one is open."""
        await self._write(lambda: self._open_term(term))

    async def check_term(self, term: int) -> None:
        """Raises FencedError if `term` is not the newest, whichever replica opened the newest."""
        async with self._lock:
            if await self._term.refresh():
                self._loaded = False
            self._check_term(term)

    async def publish(self, manifest: WeightManifest) -> bool:
        """Stores a version and moves the head to it. Returns whether an older term had published other weights for this step.

        The same content again is a no-op. Raises FencedError, ObjectMissingError if a shard is not stored, and HistoryError
        if this term published other content.
        """
        async with self._delete_lock.storing():
            return await self._write(lambda: self._publish(manifest))

    async def commit(self, manifest: CheckpointManifest) -> str:
        """Makes a checkpoint durable and moves the head to it; returns its digest. The same manifest again is a no-op.

        Raises FencedError, ObjectMissingError if a blob is not stored, and HistoryError if it does not follow the head.
        """
        digest = digest_of(checkpoint_payload(manifest))
        async with self._delete_lock.storing():
            if await self._write(lambda: self._may_commit(manifest, digest)):
                # Without the ledger's lock: versions are published while a checkpoint is synced.
                await self._make_durable(manifest)
                await self._manifests.write_checkpoint(manifest)
                crash_points.reached("between-manifest-and-head")
                await self._write(lambda: self._move_checkpoint(manifest, digest))
        return digest

    async def version(self, step: int) -> WeightManifest:
        """The newest manifest of `step`. Raises ObjectMissingError before it is published, VersionGoneError after it was deleted."""
        await self.refresh()
        if found := self._versions.get(step):
            return found[-1]
        head = self.version_head
        if step < max([*self._versions, head.step if head else -1]):
            raise VersionGoneError(f"version {step} of {self.run_id} has been deleted by retention; ask for a newer one")
        raise ObjectMissingError(f"version {step} of {self.run_id} is not published yet; watch the head and ask again")

    async def digest(self, step: int, claimed: str) -> str:
        """The digest of `step`. Reads the store only if memory does not confirm `claimed`. Raises as `version`."""
        if any(one.digest == claimed for one in self._versions.get(step, [])[-1:]):
            return claimed
        return (await self.version(step)).digest

    async def versions(self) -> list[WeightManifest]:
        """The newest manifest of each step, in order of steps."""
        await self.refresh()
        return [self._versions[step][-1] for step in sorted(self._versions)]

    async def heads(self) -> Heads:
        """Term and heads, as stored."""
        await self.refresh()
        version, checkpoint = self.version_head, self.checkpoint_head
        return Heads(
            term=self._stored_term(),
            version_step=version.step if version else -1,
            version_digest=version.digest if version else "",
            checkpoint_step=checkpoint.step if checkpoint else -1,
            checkpoint_digest=checkpoint.digest if checkpoint else "",
        )

    async def checkpoint(self) -> tuple[CheckpointManifest, str]:
        """The newest durable checkpoint and its digest. Raises ObjectMissingError if there is none."""
        await self.refresh()
        head = self.checkpoint_head
        if head is None:
            raise ObjectMissingError(f"{self.run_id} has no checkpoint yet; start from its base model")
        return await self._manifests.checkpoint(head.digest), head.digest

    async def committed_versions(self) -> list[WeightManifest]:
        """The versions of the committed checkpoints that are kept, oldest first. No deletion is under way meanwhile."""
        found: list[WeightManifest] = []
        async with self._delete_lock.storing():
            await self.refresh()
            head = self.checkpoint_head
            manifest = await self._manifests.checkpoint(head.digest) if head else None
            while manifest is not None:
                found.append(manifest.weights)
                manifest = await self._manifests.kept_checkpoint(manifest.previous) if manifest.previous else None
        return found[::-1]

    async def refresh(self) -> None:
        """Takes over the writes of other replicas. Object storage is read again only if a head moved."""
        async with self._lock:
            moved = [await key.refresh() for key in (self._term, self._version, self._checkpoint)]
            if any(moved) or not self._loaded:
                await self._read_versions()

    async def delete(self) -> None:
        """Removes the run's heads and manifests. May be repeated. For a day, late writes of an old trainer are still refused."""
        async with self._lock:
            self._loaded = False
            for key in (self._version.key, self._checkpoint.key):
                await self._heads.purge(key)
            await self._heads.put_for(self._term.key, json.dumps(_LAST_TERM).encode(), _FENCED_SECONDS)
            for path in await self._manifests.paths(self.run_id):
                await self._manifests.delete(path)
            await remove_deleted(self._manifests.objects, self.run_id)
            self._versions = {}
            await self.holders.delete()

    async def keep_digests(self, versions: Iterable[WeightManifest]) -> None:
        """Stores the digests of versions that retention is about to delete; of a run that any replica has deleted none stay."""
        async with self._lock:
            await store_deleted(self._manifests.objects, self.run_id, versions)
            if await self._term.refresh():
                self._loaded = False
            if self._stored_term() == _LAST_TERM:
                await remove_deleted(self._manifests.objects, self.run_id)

    def forget(self, manifests: Iterable[WeightManifest]) -> None:
        """Stops serving these manifests, before they are deleted."""
        manifests = list(manifests)
        gone = {(manifest.step, manifest.term) for manifest in manifests}
        kept = {step: [one for one in found if (step, one.term) not in gone] for step, found in self._versions.items()}
        self._versions = {step: found for step, found in kept.items() if found}
        served = {(one.step, one.digest) for found in self._versions.values() for one in found}
        self.holders.forget({(manifest.step, manifest.digest) for manifest in manifests} - served)

    async def _write(self, act: Callable[[], Awaitable[Result]]) -> Result:
        async with self._lock:
            for _ in range(_ATTEMPTS):
                if not self._loaded:
                    await self._load()
                # Until the write has succeeded, memory may differ from the store.
                self._loaded = False
                try:
                    result = await act()
                except Conflict:
                    continue
                except (FencedError, HistoryError, ObjectMissingError):
                    self._loaded = True
                    raise
                self._loaded = True
                return result
        raise StorageError(f"other replicas keep changing the heads of {self.run_id}; try again")

    async def _load(self) -> None:
        for key in (self._term, self._version, self._checkpoint):
            await key.refresh()
        await self._read_versions()

    async def _read_versions(self) -> None:
        found = {(one.step, one.term): one for one in (await self._manifests.versions(self.run_id)).values()}
        if head := self.checkpoint_head:
            # A power cut may have destroyed the manifests' own files; the checkpoint holds copies.
            for one in named_versions(await self._manifests.checkpoint(head.digest)):
                found.setdefault((one.step, one.term), one)
        self._versions = {}
        for step, term in sorted(found):
            self._versions.setdefault(step, []).append(found[step, term])
        self._loaded = True

    def _stored_term(self) -> int:
        return int(json.loads(self._term.value)) if self._term.value else 0

    async def _open_term(self, term: int) -> None:
        self._check_term(term)
        if term > self._stored_term():
            await self._term.replace(json.dumps(term).encode())
        # A replica that knows only the older term now fails to move a head, and reads again.
        await self._version.touch()
        await self._checkpoint.touch()

    def _check_term(self, term: int) -> None:
        newest = self._stored_term()
        if term < newest:
            raise FencedError(f"term {term} of {self.run_id} is over, term {newest} owns the run; stop this trainer")

    async def _fence(self, term: int) -> None:
        self._check_term(term)
        if term > self._stored_term():
            await self._open_term(term)

    async def _publish(self, manifest: WeightManifest) -> bool:
        await self._fence(manifest.term)
        known = self._versions.get(manifest.step, [])
        if not known or known[-1].digest != manifest.digest:
            if known and known[-1].term >= manifest.term:
                raise HistoryError(
                    f"version {manifest.step} of {self.run_id} has other weights under term {known[-1].term}; open a new term to replace it"
                )
            await self._check_stored(manifest.shards)
            await self._manifests.write_version(manifest)
            known = self._versions[manifest.step] = [*known, manifest]
            crash_points.reached("between-version-and-head")
        await self._move_version(_as_published(known[-1], manifest))
        return known[-1].term == manifest.term and any(one.digest != manifest.digest for one in known)

    async def _move_version(self, manifest: WeightManifest) -> None:
        head = self.version_head
        if head and (head.term, head.step) >= (manifest.term, manifest.step):
            return
        await self._version.replace(head_of(manifest).SerializeToString())

    async def _may_commit(self, manifest: CheckpointManifest, digest: str) -> bool:
        await self._fence(manifest.term)
        head = self.checkpoint_head
        if head is None or head.digest == digest:
            return head is None
        if manifest.step < head.step or (manifest.term <= head.term and manifest.previous != head.digest):
            raise HistoryError(
                f"checkpoint {manifest.step} of {self.run_id} does not follow the head, step {head.step} with digest {head.digest}; "
                "restart the trainer from the head"
            )
        return True

    async def _move_checkpoint(self, manifest: CheckpointManifest, digest: str) -> None:
        if await self._may_commit(manifest, digest):
            head = CheckpointHead(term=manifest.term, step=manifest.step, digest=digest)
            await self._checkpoint.replace(head.SerializeToString())

    async def _check_stored(self, shards: Iterable[Shard]) -> None:
        needed = sorted({digest for shard in shards for digest in needed_blobs(shard)})
        for batch in (needed[at : at + _PARALLEL] for at in range(0, len(needed), _PARALLEL)):
            stored = await asyncio.gather(*map(self._manifests.objects.has_blob, batch))
            for digest, is_stored in zip(batch, stored, strict=True):
                if not is_stored:
                    raise ObjectMissingError(f"blob {digest} of a shard is not in object storage; store it and publish again")

    async def _make_durable(self, manifest: CheckpointManifest) -> None:
        try:
            await self._manifests.objects.make_durable({digest for shard in named_shards(manifest) for digest in needed_blobs(shard)})
        except ObjectMissingError as error:
            raise ObjectMissingError(f"a blob of checkpoint {manifest.step} of {self.run_id} is missing: {error}") from None


def _as_published(known: WeightManifest, now: WeightManifest) -> WeightManifest:
    """The stored version with the term and trace of the present publication: a replay publishes the same weights again."""
    manifest = WeightManifest()
    manifest.CopyFrom(known)
    manifest.term, manifest.traceparent = now.term, now.traceparent
    return manifest


def head_of(manifest: WeightManifest) -> WeightManifest:
    """The value of `<run>.version`: the manifest without the names of tensors, which no loader needs."""
    head = WeightManifest()
    head.CopyFrom(manifest)
    for shard in head.shards:
        del shard.tensors[:]
    return head
