"""The gRPC face of the weight store, and the composition of the service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.aio.tasks import background, map_bounded
from gradbus.bus import Bucket, Buckets, Bus
from gradbus.control.live_workers import LiveWorkers
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
from gradbus.process import Process
from gradbus.rpc import RpcServer
from gradbus.telemetry import get_logger
from gradbus.v1 import weight_store_service_pb2 as pb
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceServicer, add_WeightStoreServiceServicer_to_server
from gradbus.v1.weights_pb2 import Attestation
from gradbus_weight_store.attestations import Attestations, LagLimit
from gradbus_weight_store.broadcasts import Broadcasts
from gradbus_weight_store.delete_lock import StoreDeleteLock
from gradbus_weight_store.ledger import Ledger
from gradbus_weight_store.manifests import Manifests, check_checkpoint, check_version
from gradbus_weight_store.named_blobs import NamedBlobs
from gradbus_weight_store.retention import Retention
from gradbus_weight_store.settings import WeightStoreSettings
from gradbus_weight_store.unnamed_blobs import UnnamedBlobs

_log = get_logger(__name__)
_STORE_SECONDS: Final = 1.0
_PARALLEL: Final = 64
"""Runs whose holders are stored at a time."""
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
    """Versions, checkpoint heads and attestations. Each run has its own ledger."""

    def __init__(
        self, heads: Bucket, manifests: Manifests, attestations: Attestations, broadcasts: Broadcasts, retention: Retention
    ) -> None:
        self._heads = heads
        self._manifests = manifests
        self._attestations = attestations
        self._broadcasts = broadcasts
        self._retention = retention
        self._ledgers: dict[str, Ledger] = {}

    def head_step(self, run_id: str) -> int:
        """The newest version that this process has seen of the run; -1 if none."""
        head = self._ledgers[run_id].version_head if run_id in self._ledgers else None
        return head.step if head else -1

    async def OpenTerm(self, request: pb.OpenTermRequest, context: Context) -> pb.OpenTermResponse:  # noqa: N802 - named by gRPC
        """See the proto."""
        async with _errors_answered(context):
            ledger = self._ledger(request.run_id)
            await ledger.open_term(request.term)
            # Completes a sweep that a crash cut short.
            self._retention.schedule(ledger)
            return pb.OpenTermResponse(heads=await ledger.heads())

    async def PublishVersion(self, request: pb.PublishVersionRequest, context: Context) -> pb.PublishVersionResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            ledger = self._ledger(request.manifest.run_id)
            check_version(request.manifest)
            return pb.PublishVersionResponse(diverged=await ledger.publish(request.manifest))

    async def CommitCheckpoint(self, request: pb.CommitCheckpointRequest, context: Context) -> pb.CommitCheckpointResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            ledger = self._ledger(request.manifest.run_id)
            check_checkpoint(request.manifest)
            digest = await ledger.commit(request.manifest)
            self._retention.schedule(ledger)
            return pb.CommitCheckpointResponse(digest=digest)

    async def GetVersion(self, request: pb.GetVersionRequest, context: Context) -> pb.GetVersionResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            # Without the attestations: every worker of a run that is new to it asks, so each answer must not name them all.
            return pb.GetVersionResponse(manifest=await self._ledger(request.run_id).version(request.step))

    async def ListVersions(self, request: pb.ListVersionsRequest, context: Context) -> pb.ListVersionsResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            ledger = self._ledger(request.run_id)
            attestations = await self._attested(request.run_id)
            return pb.ListVersionsResponse(manifests=await ledger.versions(), attestations=attestations, heads=await ledger.heads())

    async def ListCheckpoints(self, request: pb.ListCheckpointsRequest, context: Context) -> pb.ListCheckpointsResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            return pb.ListCheckpointsResponse(versions=await self._ledger(request.run_id).committed_versions())

    async def GetHeads(self, request: pb.GetHeadsRequest, context: Context) -> pb.GetHeadsResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            return pb.GetHeadsResponse(heads=await self._ledger(request.run_id).heads())

    async def GetCheckpoint(self, request: pb.GetCheckpointRequest, context: Context) -> pb.GetCheckpointResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            manifest, digest = await self._ledger(request.run_id).checkpoint()
            return pb.GetCheckpointResponse(manifest=manifest, digest=digest)

    async def Attest(self, request: pb.AttestRequest, context: Context) -> pb.AttestResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            attestation = request.attestation
            checked_name(attestation.worker, "worker")
            expected = await self._ledger(attestation.run_id).digest(attestation.step, attestation.digest)
            matches = self._attestations.record(attestation, expected)
            if matches:
                self._ledger(attestation.run_id).holders.add(attestation)
            return pb.AttestResponse(matches=matches)

    async def OpenBroadcast(self, request: pb.OpenBroadcastRequest, context: Context) -> pb.OpenBroadcastResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            broadcast = request.broadcast
            if not broadcast.shards or not all(is_digest(shard.digest) for shard in broadcast.shards):
                raise ManifestError("a broadcast needs at least one shard, each with a digest `sha256:<hex>`; fill them in")
            await self._ledger(broadcast.run_id).check_term(broadcast.term)
            return pb.OpenBroadcastResponse(membership=await self._broadcasts.open(request))

    async def JoinBroadcast(self, request: pb.JoinBroadcastRequest, context: Context) -> pb.JoinBroadcastResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            checked_name(request.worker, "worker")
            return pb.JoinBroadcastResponse(membership=await self._broadcasts.join(request))

    async def DeleteRun(self, request: pb.DeleteRunRequest, context: Context) -> pb.DeleteRunResponse:  # noqa: N802
        """See the proto."""
        async with _errors_answered(context):
            await self._ledger(request.run_id).delete()
            self._ledgers.pop(request.run_id, None)
            return pb.DeleteRunResponse()

    async def store_holders(self) -> None:
        """Stores who attested which version, of every run where that changed: together, so that they share synced writes."""
        changed = [ledger.holders for ledger in self._ledgers.values() if ledger.holders.changed]
        await map_bounded(lambda holders: holders.store(), changed, _PARALLEL)

    async def store_holders_forever(self) -> None:
        """Stores them once a second until cancelled."""
        while True:
            await asyncio.sleep(_STORE_SECONDS)
            try:
                await self.store_holders()
            except (NatsError, APIError, TimeoutError) as error:
                _log.warning("holders_not_stored", error=f"{type(error).__name__}: {error}")

    async def _attested(self, run_id: str) -> list[Attestation]:
        """By whom the versions of a run were attested: by the workers that hold them, as their heartbeats say, and by those before."""
        live = self._attestations.of(run_id)
        held = {(one.worker, one.step, one.digest) for one in live}
        return live + [one for one in await self._ledger(run_id).holders.attestations() if (one.worker, one.step, one.digest) not in held]

    def _ledger(self, run_id: str) -> Ledger:
        if run_id not in self._ledgers:
            name = checked_name(run_id, "run")
            self._ledgers[name] = Ledger(name, self._heads, self._manifests, self._retention.delete_lock)
        return self._ledgers[run_id]


@asynccontextmanager
async def _errors_answered(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except GradbusError as error:
        await context.abort(_STATUS.get(type(error), grpc.StatusCode.INTERNAL), f"{type(error).__name__}: {error}")
    except (NatsError, APIError, TimeoutError) as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"NATS did not take the write ({type(error).__name__}: {error}); try again")


async def serve(settings: WeightStoreSettings, process: Process) -> None:
    """Serves until the process is asked to stop, then finishes the calls in flight."""
    manifests = Manifests(settings.open_objects())
    bus = await Bus.connect(settings.bus, f"weight-store {settings.worker_id}")
    names = (Buckets.HEADS, Buckets.RUNS, Buckets.WORKERS, Buckets.CONDEMNED)
    heads, runs, workers, condemned = [await bus.bucket(name) for name in names]
    delete_lock, named = StoreDeleteLock(), NamedBlobs(manifests, runs)
    retention = Retention(manifests, runs, named, delete_lock)
    unnamed = UnnamedBlobs(manifests.objects, condemned, named, delete_lock, settings.blob_grace_seconds)
    async with workers.view() as presence:
        live = LiveWorkers(presence)
        attestations = Attestations(bus, live, LagLimit(settings.lagging_versions, settings.lagging_seconds))
        service = WeightStoreService(heads, manifests, attestations, Broadcasts(bus, live), retention)
        server = RpcServer(settings.rpc)
        add_WeightStoreServiceServicer_to_server(service, server.server)
        await server.start()
        async with (
            background(attestations.watch(service.head_step), "lagging workers"),
            background(unnamed.sweep_forever(), "unnamed blobs"),
            background(service.store_holders_forever(), "holders"),
        ):
            process.ready = True
            await process.stopping.wait()
            await server.stop()
        with contextlib.suppress(NatsError, APIError, TimeoutError):
            await service.store_holders()
        await retention.settle()
    await bus.close()
