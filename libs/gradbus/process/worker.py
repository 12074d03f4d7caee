"""Runs a worker process, rollout or trainer: a worker serves the runs that the conductor assigns to it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from grpc.aio import AioRpcError
from redis.asyncio import Redis

from gradbus.buffer import open_buffer
from gradbus.bus import Bus
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.errors import StorageError
from gradbus.objects import ObjectStore
from gradbus.process.heartbeat import WorkerHeartbeat
from gradbus.process.limits import IdleMemory
from gradbus.process.runner import Process, run_process
from gradbus.process.settings import ProcessSettings
from gradbus.rpc import describe_rpc_error, open_channel
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub

if TYPE_CHECKING:
    from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceAsyncStub


@dataclass(frozen=True, slots=True)
class WorkerClients:
    """The clients of a worker, and its heartbeat."""

    bus: Bus
    buffer: Redis
    objects: ObjectStore
    weight_store: WeightStoreServiceAsyncStub
    heartbeat: WorkerHeartbeat


class RunServer(Protocol):
    """Serves an assigned run."""

    async def serve_run(self, record: RunRecord) -> None:
        """Serves the run until it is cancelled."""
        ...

    def release(self) -> None:
        """Frees what libraries and other processes keep of a run that is over. Called in a thread."""
        ...


async def serve_worker(
    process: Process,
    role: Literal["rollout", "trainer"],
    settings: ProcessSettings,
    weight_store: str,
    build: Callable[[WorkerClients], Awaitable[RunServer]],
) -> None:
    """One worker with connections of its own, until the process stops. `build` may import heavy modules: it is ready only after it."""
    bus = await Bus.connect(settings.bus, f"{role} {settings.worker_id}")
    channel = open_channel(weight_store, settings.rpc_token.get_secret_value(), settings.identity)
    buffer = open_buffer(settings.buffer)
    try:
        presence = WorkerPresence(worker=settings.worker_id, role=role, incarnation=secrets.token_hex(8))
        heartbeat = WorkerHeartbeat(bus, presence)
        clients = WorkerClients(bus, buffer, settings.open_objects(), WeightStoreServiceStub(channel), heartbeat)
        server = await build(clients)

        async def serve_run(record: RunRecord) -> None:
            try:
                await server.serve_run(record)
            except AioRpcError as error:
                raise StorageError(describe_rpc_error("the weight store", weight_store, error)) from error

        await heartbeat.serve(process, serve_run, server.release)
    finally:
        await channel.close()
        await buffer.aclose()
        await bus.close()


def run_worker(
    role: Literal["rollout", "trainer"],
    settings: ProcessSettings,
    weight_store: str,
    build: Callable[[WorkerClients], Awaitable[RunServer]],
) -> int:
    """Runs a process with one worker, which ends if a run that is over left too much memory; returns the exit status."""

    async def build_alone(clients: WorkerClients) -> RunServer:
        return _Alone(await build(clients), IdleMemory(settings.leftover_memory))

    return run_process(role, settings, lambda process: serve_worker(process, role, settings, weight_store, build_alone))


class _Alone:
    """`RunServer` of a process without another worker: what is left of a run is its own."""

    def __init__(self, server: RunServer, idle: IdleMemory) -> None:
        self._server = server
        self._idle = idle

    async def serve_run(self, record: RunRecord) -> None:
        """See `RunServer`."""
        await self._server.serve_run(record)

    def release(self) -> None:
        """See `RunServer`. Raises RestartNeededError."""
        self._server.release()
        self._idle.check()
