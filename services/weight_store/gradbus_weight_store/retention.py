"""Retention: deletes versions and checkpoints that nothing can need again, and the blobs that only they named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nats.errors import Error as NatsError
from nats.js.errors import APIError
from pydantic import ValidationError

from gradbus.bus import Bucket
from gradbus.control.runs import RunRecord
from gradbus.errors import GradbusError
from gradbus.spec import EVALUATED_VERSIONS, RunSpec
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import CheckpointManifest, WeightManifest
from gradbus_weight_store.delete_lock import StoreDeleteLock
from gradbus_weight_store.ledger import Ledger
from gradbus_weight_store.manifests import Manifests, named_versions
from gradbus_weight_store.named_blobs import NamedBlobs, delete_blobs

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which versions and checkpoints a run still needs. The defaults, for a run whose spec cannot be read, keep more."""

    keep: int = 3
    max_staleness: int = 64
    evaluation_every: int = 0

    @classmethod
    def of(cls, spec: RunSpec) -> RetentionPolicy:
        """The policy that the spec asks for."""
        every = spec.evaluation.every if spec.data.eval else 0
        return cls(spec.checkpoint.keep, spec.schedule.max_staleness, every)

    def kept_checkpoints(self, found: Mapping[str, CheckpointManifest], head_step: int) -> dict[str, CheckpointManifest]:
        """The newest `keep` checkpoints up to the head, and all above it: a commit may be under way."""
        below = sorted((path for path, one in found.items() if one.step < head_step), key=lambda path: (found[path].step, found[path].term))
        # Of one step the newest term counts: an older one may never have been committed.
        newest = list({found[path].step: path for path in below}.values())
        older = newest[max(0, len(newest) - (self.keep - 1)) :]
        return {path: one for path, one in found.items() if one.step >= head_step or path in older}

    def kept_versions(
        self, found: Mapping[str, WeightManifest], kept: Iterable[CheckpointManifest], head_step: int
    ) -> dict[str, WeightManifest]:
        """The versions that a resume or an evaluation samples with, and those that a kept checkpoint names."""
        named = {(version.step, version.digest) for checkpoint in kept for version in named_versions(checkpoint)}
        floor = head_step - self.max_staleness
        evaluated = self._evaluated(head_step)
        return {path: one for path, one in found.items() if one.step >= floor or one.step in evaluated or (one.step, one.digest) in named}

    def _evaluated(self, head_step: int) -> set[int]:
        if not self.evaluation_every:
            return set()
        newest = head_step // self.evaluation_every
        return {max(0, newest - back) * self.evaluation_every for back in range(EVALUATED_VERSIONS)}


class Retention:
    """Sweeps in the background, so that no commit waits for it. The next sweep completes one that a crash cut short."""

    def __init__(self, manifests: Manifests, runs: Bucket, named: NamedBlobs, delete_lock: StoreDeleteLock) -> None:
        self._manifests = manifests
        self._runs = runs
        self._named = named
        self.delete_lock = delete_lock
        self._due: dict[str, Ledger] = {}
        self._task: asyncio.Task[None] | None = None

    def schedule(self, ledger: Ledger) -> None:
        """Sweeps the run soon. Calls before the sweep begins are one."""
        self._due[ledger.run_id] = ledger
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._sweep_due(), name="retention")

    async def settle(self) -> None:
        """Waits until all scheduled sweeps are done."""
        if self._task:
            await self._task

    async def _sweep_due(self) -> None:
        while self._due:
            run_id, ledger = self._due.popitem()
            try:
                await self.sweep(ledger)
                await self._manifests.objects.remove_partial_files()
            except (GradbusError, NatsError, APIError, TimeoutError) as error:
                _log.warning("deletion_postponed", run_id=run_id, error=f"{type(error).__name__}: {error}")
            except Exception:  # noqa: BLE001 - the boundary of one run: logged whole, and the others are swept
                _log.exception("deletion_failed", run_id=run_id)

    async def sweep(self, ledger: Ledger) -> None:
        """Deletes what the run no longer needs: first blobs, then the manifests that name them, so that no blob is left without a name.

        The digests of deleted versions are kept: a replay of the run must end in them.
        """
        head = ledger.checkpoint_head
        if head is None:
            return
        policy = await self._policy(ledger.run_id)
        checkpoints = await self._manifests.checkpoints(ledger.run_id)
        versions = await self._manifests.versions(ledger.run_id)
        kept_checkpoints = policy.kept_checkpoints(checkpoints, head.step)
        kept_versions = policy.kept_versions(versions, kept_checkpoints.values(), head.step)
        ledger.forget(one for path, one in versions.items() if path not in kept_versions)
        old = {*checkpoints, *versions} - {*kept_checkpoints, *kept_versions}
        if not old:
            return
        blobs = {digest for path in old for digest in await self._manifests.blobs(path)}
        await self._named.among(blobs, without=old)  # fills the caches, so that the lock is held for a short time
        await ledger.keep_digests([one for path, one in versions.items() if path in old])
        async with self.delete_lock.deleting():
            blobs -= await self._named.among(blobs, without=old)
            await delete_blobs(self._manifests.objects, blobs)
            for path in old:
                await self._manifests.delete(path)
        _log.info("versions_deleted", run_id=ledger.run_id, step=head.step, manifests=len(old), blobs=len(blobs))

    async def _policy(self, run_id: str) -> RetentionPolicy:
        entry = await self._runs.get(f"{run_id}.spec")
        if entry is None:
            return RetentionPolicy()
        try:
            return RetentionPolicy.of(RunRecord.model_validate_json(entry.value).spec)
        except ValidationError as error:
            _log.warning("spec_not_read", run_id=run_id, error=str(error))
            return RetentionPolicy()
