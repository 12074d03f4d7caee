"""The gRPC face of the weight store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.bus import Bucket, Bus
from gradbus.errors import (
    CorruptRecordError,
    FencedError,
    GradbusError,
    HistoryError,
    ManifestError,
    ObjectMissingError,
    SettingsError,
    StorageError,
    VersionGoneError,
)
from gradbus.ids import checked_name, is_digest
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceServicer
from gradbus.v1.weights_pb2 import CheckpointManifest, Shard, WeightManifest
from gradbus_weight_store.attestations import Attestations
from gradbus_weight_store.broadcasts import Broadcasts
from gradbus_weight_store.delete_lock import StoreDeleteLock
from gradbus_weight_store.ledger import Ledger
from gradbus_weight_store.manifests import Manifests
from gradbus_weight_store.retention import Retention

Context = grpc.aio.ServicerContext[Any, Any]

_STATUS: dict[type[GradbusError], grpc.StatusCode] = {
    FencedError: grpc.StatusCode.FAILED_PRECONDITION,
    HistoryError: grpc.StatusCode.FAILED_PRECONDITION,
    ManifestError: grpc.StatusCode.INVALID_ARGUMENT,
    SettingsError: grpc.StatusCode.INVALID_ARGUMENT,
    ObjectMissingError: grpc.StatusCode.NOT_FOUND,
    VersionGoneError: grpc.StatusCode.OUT_OF_RANGE,
    CorruptRecordError: grpc.StatusCode.DATA_LOSS,
    StorageError: grpc.StatusCode.UNAVAILABLE,
}


class WeightStoreService(WeightStoreServiceServicer):
    """Versions, checkpoints' heads and attestations; each run has a ledger of its own."""

    def __init__(
        self, bus: Bus, heads: Bucket, runs: Bucket, manifests: Manifests, attestations: Attestations, broadcasts: Broadcasts
    ) -> None:
        self._bus = bus
        self._heads = heads
        self._manifests = manifests
        self._attestations = attestations
        self._broadcasts = broadcasts
        self._gate = StoreDeleteLock()
        self._ledgers: dict[str, Ledger] = {}
        self.retention = Retention(manifests, runs, self._gate)

    def head_step(self, run_id: str) -> int:
        """The newest version that this process has seen of the run; -1 if none."""
        head = self._ledgers[run_id].version_head if run_id in self._ledgers else None
        return head.step if head else -1

    async def OpenTerm(self, request: pb.OpenTermRequest, context: Context) -> pb.OpenTermResponse:  # noqa: N802 - named by gRPC
        """See the proto."""
        async with _answered(context):
            ledger = self._ledger(request.run_id)
            await ledger.open_term(request.term)
            # A sweep that a crash cut short is finished before the run goes on.
            self.retention.schedule(ledger)
            return pb.OpenTermResponse(heads=await ledger.heads())

    async def PublishVersion(self, request: pb.PublishVersionRequest, context: Context) -> pb.PublishVersionResponse:  # noqa: N802
        """See the proto."""
        async with _answered(context):
            ledger = self._ledger(request.manifest.run_id)
            _check_version(request.manifest)
            return pb.PublishVersionResponse(diverged=await ledger.publish(request.manifest))

    async def CommitCheckpoint(self, request: pb.CommitCheckpointRequest, context: Context) -> pb.CommitCheckpointResponse:  # noqa: N802
        """See the proto."""
        async with _answered(context):
            ledger = self._ledger(request.manifest.run_id)
            _check_checkpoint(request.manifest)
            digest = await ledger.commit(request.manifest)
            self.retention.schedule(ledger)
            return pb.CommitCheckpointResponse(digest=digest)

    async def GetVersion(self, request: pb.GetVersionRequest, context: Context) -> pb.GetVersionResponse:  # noqa: N802
        """See the proto."""
        async with _answered(context):
            manifest = await self._ledger(request.run_id).version(request.step)
            held = [one for one in self._attestations.of(request.run_id) if one.step == request.step]
            return pb.GetVersionResponse(manifest=manifest, attestations=held)

    async def ListVersions(self, request: pb.ListVersionsRequest, context: Context) -> pb.ListVersionsResponse:  # noqa: N802
        """See the proto."""
        async with _answered(context):
            ledger = self._ledger(request.run_id)
            held = self._attestations.of(request.run_id)
            return pb.ListVersionsResponse(manifests=await ledger.versions(), attestations=held, heads=await ledger.heads())

    async def GetHeads(self, request: pb.GetHeadsRequest, context: Context) -> pb.GetHeadsResponse:  # noqa: N802
        """See the proto."""
        async with _answered(context):
            return pb.GetHeadsResponse(heads=await self._ledger(request.run_id).heads())

    async def GetCheckpoint(self, request: pb.GetCheckpointRequest, context: Context) -> pb.GetCheckpointResponse:  # noqa: N802
        """See the proto."""
        async with _answered(context):
            manifest, digest = await self._ledger(request.run_id).checkpoint()
            return pb.GetCheckpointResponse(manifest=manifest, digest=digest)

    async def Attest(self, request: pb.AttestRequest, context: Context) -> pb.AttestResponse:  # noqa: N802
        """See the proto."""
        async with _answered(context):
            claim = request.attestation
            checked_name(claim.worker, "worker")
            expected = await self._ledger(claim.run_id).digest(claim.step, claim.digest)
            return pb.AttestResponse(matches=self._attestations.note(claim, expected))

    async def OpenBroadcast(self, request: pb.OpenBroadcastRequest, context: Context) -> pb.OpenBroadcastResponse:  # noqa: N802
        """See the proto."""
        async with _answered(context):
            broadcast = request.broadcast
            if not broadcast.shards or not all(is_digest(shard.digest) for shard in broadcast.shards):
                raise ManifestError("a broadcast needs at least one shard, each with a digest `sha256:<hex>`; fill them in")
            await self._ledger(broadcast.run_id).check_term(broadcast.term)
            return pb.OpenBroadcastResponse(membership=await self._broadcasts.open(request))

    async def JoinBroadcast(self, request: pb.JoinBroadcastRequest, context: Context) -> pb.JoinBroadcastResponse:  # noqa: N802
        """See the proto."""
        async with _answered(context):
            checked_name(request.worker, "worker")
            return pb.JoinBroadcastResponse(membership=await self._broadcasts.join(request))

    def _ledger(self, run_id: str) -> Ledger:
        if run_id not in self._ledgers:
            name = checked_name(run_id, "run")
            self._ledgers[name] = Ledger(name, self._bus, self._heads, self._manifests, self._gate)
        return self._ledgers[run_id]


@asynccontextmanager
async def _answered(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except GradbusError as error:
        await context.abort(_STATUS.get(type(error), grpc.StatusCode.INTERNAL), f"{type(error).__name__}: {error}")
    except (NatsError, APIError, TimeoutError) as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"NATS did not take the write ({type(error).__name__}: {error}); try again")


def _check_version(manifest: WeightManifest) -> None:
    if manifest.step < 0 or not manifest.shards or not is_digest(manifest.digest):
        raise ManifestError("a version needs a step from 0 on, a digest `sha256:<hex>` and at least one shard; fill them in")
    for shard in manifest.shards:
        _check_chain(shard)


def _check_chain(shard: Shard) -> None:
    if shard.delta_only and not shard.chain:
        raise ManifestError(f"shard {shard.digest} is stored by deltas alone and names none; name its chain, or store it whole")
    named = [shard.digest, *(digest for delta in shard.chain for digest in (delta.base_digest, delta.digest))]
    if not all(map(is_digest, named)):
        raise ManifestError("a shard and its chain are named by digests `sha256:<hex>`; mend the manifest")


def _check_checkpoint(manifest: CheckpointManifest) -> None:
    versions = [manifest.weights, *manifest.pinned]
    for version in versions:
        _check_version(version)
    if any(version.run_id != manifest.run_id for version in versions) or manifest.weights.step != manifest.step:
        raise ManifestError("a checkpoint's versions must be of its own run, and its weights of its own step; mend the manifest")
    if any(shard.delta_only for shard in (*manifest.weights.shards, *manifest.optimizer)):
        raise ManifestError("a checkpoint's own version is stored whole: a resume and an export read it; store it so and commit again")
