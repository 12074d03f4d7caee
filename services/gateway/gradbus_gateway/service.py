"""The gateway's process: connect, serve, drain."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import uvicorn

from gradbus.access.keyring import Keyring
from gradbus.aio.tasks import background
from gradbus.buffer import open_buffer
from gradbus.bus import Buckets, Bus
from gradbus.control.condemned import CondemnedBlobs
from gradbus.memory.allocator import trim_memory
from gradbus.process import Process
from gradbus.process.listener import BACKLOG, listen
from gradbus.process.tls_listener import TlsListener
from gradbus.rpc import open_channel
from gradbus.telemetry import get_logger
from gradbus.tokenizer.launcher import ForkServer
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus_gateway.app import create_app
from gradbus_gateway.auth.sessions import Sessions
from gradbus_gateway.events.feeds import EventFeeds
from gradbus_gateway.history.histories import Histories
from gradbus_gateway.http.connection_table import ConnectionTable, within_open_files
from gradbus_gateway.http.connections import bounded_protocol, close_slow_connections
from gradbus_gateway.intake.check_turns import CheckTurns
from gradbus_gateway.intake.model.run_models import RunModels
from gradbus_gateway.intake.plan import PLANS_AT_A_TIME, Planner
from gradbus_gateway.intake.spec.intake import SpecIntake
from gradbus_gateway.intake.submission import RunIntake
from gradbus_gateway.quotas.runs import RunQuota
from gradbus_gateway.quotas.uploads import UPLOADS, UploadQuota
from gradbus_gateway.resources.dataset_rows import DatasetRows
from gradbus_gateway.routes.dependencies import Gateway
from gradbus_gateway.runs.idempotency import IdempotencyKeys
from gradbus_gateway.runs.listing import RunList
from gradbus_gateway.runs.relations import RunRelations
from gradbus_gateway.runs.store import RunStore
from gradbus_gateway.settings import ConnectionLimits, GatewaySettings, Quotas
from gradbus_gateway.worker_roster import WorkerRoster

_log = get_logger(__name__)
_DRAIN_SECONDS = 5
_TRIM_SECONDS = 30.0
"""Between two returns of freed memory to the system: a crowd of clients leaves a hundred megabytes with the allocator."""


async def serve(settings: GatewaySettings, process: Process) -> None:
    """Serves until the process is asked to stop. Raises SettingsError when the address is taken or the keys cannot be read."""
    listener = listen(settings.listen, "GRADBUS_LISTEN")
    connections = ConnectionTable(within_open_files(ConnectionLimits()))
    async with open_gateway(settings, process.stopping) as gateway:
        https, app = settings.https, create_app(gateway, settings)
        await asyncio.to_thread(app.openapi)  # it takes half a second, for which a request would make all others wait
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=bounded_protocol(connections),
            callback_notify=partial(close_slow_connections, connections),
            timeout_notify=0,  # with every tick of its clock, once a second
            timeout_graceful_shutdown=_DRAIN_SECONDS,
            ssl_certfile=https.chain if https else None,
            ssl_keyfile=https.key if https else None,
        )
        server = _Server(config, connections.limits.head_seconds)
        serving = asyncio.create_task(server.serve([listener]), name="rest")
        process.ready = True
        _log.info("serving", address=f"{listener.getsockname()[0]}:{listener.getsockname()[1]}")
        stop = asyncio.create_task(process.stopping.wait(), name="stop")
        async with background(_trim_forever(), "trim"):
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            stop.cancel()
            await serving


async def _trim_forever() -> None:
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        await asyncio.to_thread(trim_memory)


@asynccontextmanager
async def open_gateway(settings: GatewaySettings, stopping: asyncio.Event) -> AsyncIterator[Gateway]:
    """The gateway's stores and clients, open inside the block."""
    keyring = Keyring(settings.api_keys_file)
    bus = await Bus.connect(settings.bus, "gateway")
    buffer = open_buffer(settings.buffer)
    channel = open_channel(settings.weight_store, settings.rpc_token.get_secret_value(), settings.identity)
    tokenizers = ForkServer()
    histories = Histories(bus, settings.cache_dir)
    try:
        bucket, objects = await bus.bucket(Buckets.RUNS), settings.open_objects()
        runs = RunStore(bucket)
        quotas = Quotas()
        weights = WeightStoreServiceStub(channel)
        blobs = await bus.bucket(Buckets.CONDEMNED)
        async with bucket.view("*.*") as view, blobs.view() as blobs_view, bucket.view(UPLOADS) as uploads:
            condemned, run_list, relations = CondemnedBlobs(blobs, blobs_view), RunList(view), RunRelations(view)
            specs = SpecIntake(objects, tokenizers, settings, RunModels(runs, relations, weights, objects, keyring))
            yield Gateway(
                keyring=keyring,
                sessions=Sessions(await bus.bucket(Buckets.SESSIONS)),
                runs=runs,
                run_list=run_list,
                relations=relations,
                feeds=EventFeeds(bus, runs, run_list, stopping),
                histories=histories,
                uploads=UploadQuota(bucket, uploads, objects, quotas),
                intake=RunIntake(runs, IdempotencyKeys(bucket), RunQuota(view, quotas), specs, condemned),
                planner=Planner(objects, CheckTurns(PLANS_AT_A_TIME)),
                bus=bus,
                workers=WorkerRoster(await bus.bucket(Buckets.WORKERS)),
                buffer=buffer,
                objects=objects,
                rows=DatasetRows(objects, settings.cache_dir),
                condemned=condemned,
                weights=weights,
                stopping=stopping,
            )
    finally:
        await histories.close()
        await tokenizers.close()
        await channel.close()
        await buffer.aclose()
        await bus.close()


class _Server(uvicorn.Server):
    """uvicorn's server. A client has `handshake_seconds` for a TLS handshake, for which uvicorn leaves it a minute."""

    def __init__(self, config: uvicorn.Config, handshake_seconds: float) -> None:
        super().__init__(config)
        self._handshake_seconds = handshake_seconds or None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens on `sockets`."""
        await self.lifespan.startup()
        self.servers = []
        protocol: Any = self.config.http_protocol_class  # uvicorn passes more than a protocol of asyncio takes
        connect = partial(protocol, config=self.config, server_state=self.server_state, app_state={})
        loop, context = asyncio.get_running_loop(), self.config.ssl
        for sock in sockets or []:
            if context is None:
                self.servers.append(await loop.create_server(connect, sock=sock, backlog=BACKLOG))
            else:
                self.servers.append(cast("asyncio.Server", TlsListener(sock, connect, context, self._handshake_seconds)))
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `gradbus.process`."""
        yield
