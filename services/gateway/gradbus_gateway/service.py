"""The gateway's process: connect, serve, drain."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from gradbus.buffer import open_buffer
from gradbus.bus import Buckets, Bus
from gradbus.errors import SettingsError
from gradbus.process import Process
from gradbus.rpc import open_channel
from gradbus.telemetry import get_logger
from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceStub
from gradbus_gateway.app import create_app
from gradbus_gateway.auth.keyring import Keyring
from gradbus_gateway.auth.sessions import Sessions
from gradbus_gateway.intake.submission import RunIntake
from gradbus_gateway.routes.dependencies import Gateway
from gradbus_gateway.runs.idempotency import IdempotencyKeys
from gradbus_gateway.runs.store import RunStore
from gradbus_gateway.settings import GatewaySettings

_log = get_logger(__name__)
_DRAIN_SECONDS = 5


async def serve(settings: GatewaySettings, process: Process) -> None:
    """Serves until the process is asked to stop. Raises SettingsError when the address is taken or the keys cannot be read."""
    listener = _listen(settings.listen)
    async with open_gateway(settings, process.stopping) as gateway:
        config = uvicorn.Config(
            create_app(gateway, settings), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=_DRAIN_SECONDS
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve([listener]), name="rest")
        gc.freeze()  # what exists now stays; collecting it again and again paused every request for a tenth of a second
        process.ready = True
        _log.info("serving", address=f"{listener.getsockname()[0]}:{listener.getsockname()[1]}")
        stop = asyncio.create_task(process.stopping.wait(), name="stop")
        await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        stop.cancel()
        await serving


@asynccontextmanager
async def open_gateway(settings: GatewaySettings, stopping: asyncio.Event) -> AsyncIterator[Gateway]:
    """The gateway's stores and clients, open inside the block."""
    keyring = Keyring(settings.api_keys_file)
    bus = await Bus.connect(settings.bus, "gateway")
    buffer = open_buffer(settings.buffer)
    channel = open_channel(settings.weight_store, settings.rpc_token.get_secret_value())
    try:
        bucket, objects = await bus.bucket(Buckets.RUNS), settings.open_objects()
        runs = RunStore(bucket)
        yield Gateway(
            keyring=keyring,
            sessions=Sessions(await bus.bucket(Buckets.SESSIONS)),
            runs=runs,
            intake=RunIntake(runs, IdempotencyKeys(bucket), objects, settings),
            bus=bus,
            workers=await bus.bucket(Buckets.WORKERS),
            buffer=buffer,
            objects=objects,
            weights=WeightStoreServiceStub(channel),
            stopping=stopping,
        )
    finally:
        await channel.close()
        await buffer.aclose()
        await bus.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `gradbus.process`."""
        yield


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot listen on {address} ({error}); set GRADBUS_LISTEN to a free address") from None
