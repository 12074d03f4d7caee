"""Follows a run's published versions, and loads one into the engine with attestation."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc.aio import AioRpcError
from opentelemetry.trace import SpanKind

from gradbus.bus import Buckets, Bus
from gradbus.errors import AttestationError, ModelError, ObjectMissingError, VersionGoneError
from gradbus.objects import ObjectStore
from gradbus.rpc import until_answered
from gradbus.telemetry import Attributes, get_logger, span, weights_active
from gradbus.v1.weight_store_service_pb2 import AttestRequest, GetVersionRequest
from gradbus.v1.weights_pb2 import Attestation, WeightManifest
from gradbus_rollout.engines.base import Engine, ExpectedLogprobs
from gradbus_rollout.weights.version_files import VersionFiles

if TYPE_CHECKING:
    from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceAsyncStub

_log = get_logger(__name__)
_KEPT_MANIFESTS = 64
_CALL_SECONDS = 10.0
_AWAY_SECONDS = 30.0


class VersionLoader:
    """The versions of one run, as this worker knows them: those that the version head has named, and those that it asked for."""

    def __init__(self, bus: Bus, objects: ObjectStore, store: WeightStoreServiceAsyncStub, run_id: str, cache_dir: Path) -> None:
        self._bus = bus
        self._store = store
        self._run_id = run_id
        self._files = VersionFiles(objects, cache_dir / "shards")
        self._manifests: dict[int, WeightManifest] = {}
        self._attestation: asyncio.Task[None] | None = None
        self._published: dict[int, float] = {}
        """Version to the time at which the head came to it, on the monotonic clock."""
        self.newest = -1
        """The newest version published; -1 before the first."""
        self.changed = asyncio.Event()
        """Set when a version becomes known; the waiting task clears it."""

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Follows the version head inside the block."""
        heads = await self._bus.bucket(Buckets.HEADS)
        async with heads.view(f"{self._run_id}.version") as view:
            view.listen(lambda key: self._head_moved(view.get(key)))
            yield

    def digest(self, step: int) -> str:
        """Digest in the manifest of version `step`, empty if unknown here; a higher term may change it."""
        return self._manifests[step].digest if step in self._manifests else ""

    def known_for(self, step: int) -> float:
        """Seconds since the head came to version `step`, of a version that has not been loaded since; 0 for any other."""
        return time.monotonic() - self._published[step] if step in self._published else 0.0

    async def load(self, engine: Engine, worker: str, step: int) -> str:
        """Loads version `step` into the engine and attests it; returns the digest.

        Raises VersionGoneError when retention has deleted it, AttestationError when the engine's own digest is not the manifest's.
        """
        manifest = await self._manifest(step)
        attributes: Attributes = {"gradbus.run.id": self._run_id, "gradbus.policy.version": step}
        with span("load_weights", SpanKind.CONSUMER, manifest.traceparent, attributes):
            return await self._load(engine, worker, manifest)

    async def _load(self, engine: Engine, worker: str, manifest: WeightManifest) -> str:
        step = manifest.step
        try:
            with span("fetch_shards"):
                paths = await self._files.files(manifest)
            with span("load_engine"):
                digest = await _load_engine(engine, paths, manifest)
        except ObjectMissingError:
            self._manifests.pop(step, None)
            raise VersionGoneError(f"the weights of version {step} are gone; its tasks are abandoned") from None
        self._attestation = asyncio.create_task(self._attest(Attestation(run_id=self._run_id, worker=worker, step=step, digest=digest)))
        if digest != manifest.digest:
            self._manifests.pop(step, None)
            self._files.evict_all()
            raise AttestationError(f"version {step} is {manifest.digest} but the engine has {digest}; it is loaded again")
        if step in self._published:
            weights_active(self.known_for(step))
            del self._published[step]
        self._files.loaded(paths)
        return digest

    async def _attest(self, attestation: Attestation) -> None:
        """Reports the digest to the weight store, while sampling goes on: the comparison that decides is made in this worker."""
        with contextlib.suppress(AioRpcError):  # the next load attests again
            await self._store.Attest(AttestRequest(attestation=attestation), timeout=2.0)

    async def _manifest(self, step: int) -> WeightManifest:
        if step not in self._manifests:
            manifest = await self._request_manifest(step)
            self._learn(manifest)
            return manifest
        return self._manifests[step]

    async def _request_manifest(self, step: int) -> WeightManifest:
        """Asks the weight store, again while it is away: ending the worker would lose the engine and all samples in flight."""
        request = GetVersionRequest(run_id=self._run_id, step=step)
        try:
            response = await until_answered(
                lambda: self._store.GetVersion(request, timeout=_CALL_SECONDS), self._run_id, seconds=_AWAY_SECONDS
            )
        except AioRpcError as error:
            if error.code() in {grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.NOT_FOUND}:
                raise VersionGoneError(f"version {step} is gone: {error.details()}; its tasks are abandoned") from None
            raise
        return response.manifest

    def _head_moved(self, value: bytes | None) -> None:
        if value:
            manifest = WeightManifest.FromString(value)
            self._published[manifest.step] = time.monotonic()
            self._learn(manifest)

    def _learn(self, manifest: WeightManifest) -> None:
        known = self._manifests.get(manifest.step)
        if known is None or known.term <= manifest.term:
            self._manifests[manifest.step] = manifest
        while len(self._manifests) > _KEPT_MANIFESTS:
            oldest = min(self._manifests)
            del self._manifests[oldest]
            self._published.pop(oldest, None)
        # `newest` only grows; a restarted trainer publishes older versions again.
        self.newest = max(self.newest, manifest.step)
        self.changed.set()


async def _load_engine(engine: Engine, paths: Sequence[Path], manifest: WeightManifest) -> str:
    probe = ExpectedLogprobs.of(manifest.probe) if manifest.HasField("probe") else None
    try:
        return await engine.load(paths, manifest.step, probe)
    except ModelError:
        if all(path.exists() for path in paths):
            raise
        raise ObjectMissingError(f"a shard of version {manifest.step} was deleted before it was opened; ask for a newer version") from None
