"""The composition of the service."""

from __future__ import annotations

import asyncio

from gradbus.bus import Buckets, Bus
from gradbus.process import Process
from gradbus.rpc import RpcServer
from gradbus.v1.weight_store_service_pb2_grpc import add_WeightStoreServiceServicer_to_server
from gradbus_weight_store.attestations import Attestations, LagLimit
from gradbus_weight_store.broadcasts import Broadcasts
from gradbus_weight_store.manifests import Manifests
from gradbus_weight_store.service import WeightStoreService
from gradbus_weight_store.settings import WeightStoreSettings


async def serve(settings: WeightStoreSettings, process: Process) -> None:
    """Serves until the process is asked to stop, then finishes what is in flight."""
    manifests = Manifests(settings.open_objects())
    bus = await Bus.connect(settings.bus, f"weight-store {settings.worker_id}")
    heads, runs, workers = [await bus.bucket(name) for name in (Buckets.HEADS, Buckets.RUNS, Buckets.WORKERS)]
    async with workers.view() as presence:
        attestations = Attestations(bus, presence, LagLimit(settings.straggler_versions, settings.straggler_seconds))
        service = WeightStoreService(bus, heads, runs, manifests, attestations, Broadcasts(bus, presence))
        server = RpcServer(settings.rpc)
        add_WeightStoreServiceServicer_to_server(service, server.server)
        await server.start()
        watcher = asyncio.create_task(attestations.watch(service.head_step), name="stragglers")
        process.ready = True
        await process.stopping.wait()
        await server.stop()
        watcher.cancel()
        await service.retention.settle()
    await bus.close()
